package upstream

import (
	"maps"
	"sync"
	"time"
)

// unimplementedFor is how long the relay remembers that a control plane does not implement a
// method. A later release of the control plane may.
const unimplementedFor = 10 * time.Minute

// unimplemented are the methods that one control plane does not implement. All of its streams share
// them: a method that one stream has found missing the others need not try, and the log has one
// line about it. The zero value is empty.
type unimplemented struct {
	mu    sync.Mutex           // comes last in the order of locks
	until map[string]time.Time // by method, of which there are few
}

// found notes that the control plane does not implement a form, and reports whether that is new.
func (u *unimplemented) found(f *form) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lacks(f) {
		return false
	}
	if u.until == nil {
		u.until = map[string]time.Time{}
	}
	u.until[f.method] = time.Now().Add(unimplementedFor)
	return true
}

// inherit copies the methods of another one.
func (u *unimplemented) inherit(from *unimplemented) {
	from.mu.Lock()
	defer from.mu.Unlock()
	u.until = maps.Clone(from.until)
}

// answered notes that the control plane has answered in a form.
func (u *unimplemented) answered(f *form) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.until, f.method)
}

// lacking reports whether the control plane is known not to implement a form.
func (u *unimplemented) lacking(f *form) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lacks(f)
}

// first returns the form to try first.
func (u *unimplemented) first(forms []*form) *form {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range forms {
		if !u.lacks(f) {
			return f
		}
	}
	return forms[0]
}

// lacks is lacking. The caller holds mu.
func (u *unimplemented) lacks(f *form) bool { return time.Now().Before(u.until[f.method]) }
