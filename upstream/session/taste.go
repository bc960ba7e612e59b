package session

import "github.com/xds-relay/xds-relay/taster"

// A resource is looked at as clients would once for each content: what is held was looked at when
// it came.

// canonical returns what a resource is kept under.
func (r *Resource) canonical() string {
	if r.key == "" {
		r.key = canonical(r.Name)
	}
	return r.key
}

// tasteAs looks at the value of a resource as clients of its type would.
func (r *Resource) tasteAs(of taster.Type, check taster.Mode) {
	r.verdict, r.taste = check.Taste(of, r.value), tasted
}

// Taste looks at the resources that are not marked.
func (r *Response) Taste(check taster.Mode) {
	of := taster.Of(r.TypeURL)
	for i := range r.Resources {
		yield(i, yieldEveryTaste)
		if res := &r.Resources[i]; res.taste == untasted && res.canBeTasted(r.TypeURL) {
			res.tasteAs(of, check)
		}
	}
}

// canBeTasted reports whether a resource has a value of the response's type.
func (r *Resource) canBeTasted(typeURL string) bool {
	return r.Err == nil && r.Present && r.typeURL == typeURL
}

// Findings yields the names of the resources that were looked at, with what clients would reject
// of each, and of those that were removed; nil is for nothing.
func (r *Response) Findings(yieldFinding func(name string, found *taster.Verdict) bool) {
	for i := range r.Resources {
		yield(i, yieldEvery)
		if res := &r.Resources[i]; res.taste == tasted && !yieldFinding(res.Name, res.verdict) {
			return
		}
	}
	for _, removed := range r.Removed {
		if !yieldFinding(removed.Name, nil) {
			return
		}
	}
}

// Checked returns how many resources were looked at, and of how many clients would reject something.
func (r *Response) Checked() (all, failed int) {
	for i := range r.Resources {
		if res := &r.Resources[i]; res.taste == tasted {
			all++
			if res.verdict != nil {
				failed++
			}
		}
	}
	return all, failed
}
