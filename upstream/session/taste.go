package session

import "github.com/xds-relay/xds-relay/internal/taster"

// The relay checks a resource as clients would check it, once for each content: a held resource was
// checked when it came.

// canonical returns the key of a resource.
func (r *Resource) canonical() string {
	if r.key == "" {
		r.key = canonical(r.Name)
	}
	return r.key
}

// tasteAs checks the value of a resource as clients of its type would check it.
func (r *Resource) tasteAs(of taster.Type, check taster.Mode) {
	r.verdict, r.taste = check.Taste(of, r.value), tasted
}

// Taste checks the resources that MarkHeld has not marked.
func (r *Response) Taste(check taster.Mode) {
	of, work := taster.Of(r.TypeURL), parts{every: yieldEveryTaste}
	for i := range r.Resources {
		res := &r.Resources[i]
		work.begin(len(res.value))
		if res.taste == untasted && res.canBeTasted(r.TypeURL) {
			res.tasteAs(of, check)
		}
	}
}

// canBeTasted reports whether a resource has a value of the response's type.
func (r *Resource) canBeTasted(typeURL string) bool {
	return r.Err == nil && r.Present && r.typeURL == typeURL
}

// Findings iterates over the names of the resources that were checked, with what clients would reject
// in each, nil for nothing. Removed resources follow, with nil.
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

// Checked returns how many resources were checked, and how many of them clients would reject.
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
