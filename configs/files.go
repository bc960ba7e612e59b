package configs

// This file is the check of the files that a configuration names.

import (
	"errors"
	"fmt"
)

// CheckFiles looks at the files that c names, which Load and Parse do not do: a
// configuration can be checked on another machine than its own. The error is an
// Errors with all that cannot be used. Directories of resources are not looked
// at: one that is not there today may be tomorrow, and its source says so.
func (c *Config) CheckFiles() error {
	var errs Errors
	addTLS := func(path string, err error) {
		var found Errors
		errors.As(err, &found)
		for _, e := range found {
			errs = append(errs, c.source.errorf(join(path, e.Path), "%w", e.Err))
		}
	}
	for i, l := range c.Listeners {
		if l.TLS != nil {
			_, err := l.TLS.Load()
			addTLS(fmt.Sprintf("listeners[%d].tls", i), err)
		}
	}
	for i, a := range c.Authorities {
		path := fmt.Sprintf("authorities[%d]", i)
		for j, s := range a.Servers {
			if s.TLS != nil {
				_, err := s.TLS.Load()
				addTLS(fmt.Sprintf("%s.servers[%d].tls", path, j), err)
			}
		}
	}
	return errs.orNil()
}
