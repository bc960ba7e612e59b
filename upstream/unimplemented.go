package upstream

import (
	"maps"
	"sync"
	"time"
)

// unimplementedFor is how long the relay remembers that a control plane does not implement a
// method. A later release of it may.
const unimplementedFor = 10 * time.Minute

// unimplemented are the methods that one control plane does not implement, over all of its
// streams: what one stream has found out the others need not try, and there is one line of
// log. The zero value knows nothing.
type unimplemented struct {
	mu    sync.Mutex           // comes last in the order of locks
	until map[string]time.Time // by method, of which there are few
}

// found notes that the control plane does not implement a form, and says whether that is new.
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

// inherit takes over what another one knows.
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

// first returns which of the forms is to be tried first.
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

// lacks says that the control plane is known not to implement a form. The caller holds mu.
func (u *unimplemented) lacks(f *form) bool { return time.Now().Before(u.until[f.method]) }
