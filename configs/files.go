package configs

// This file checks the files that a configuration names.

import (
	"errors"
	"fmt"
)

// CheckFiles reads the files that c names. Load and Parse do not, so that one can check a
// configuration on another machine. The error is an Errors with every file that the relay
// cannot use. CheckFiles does not look at directories of resources: a directory may appear
// later, and its source reports it until then.
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
	if c.Admin.TLS != nil {
		_, err := c.Admin.TLS.Load()
		addTLS("admin.tls", err)
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
	return inOrder(errs)
}
