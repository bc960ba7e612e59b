package configs

// This file is the check of the files and folders that a configuration names.

import (
	"errors"
	"fmt"
	"os"
)

// CheckFiles looks at the files and folders that c names, which Load and Parse
// do not do: a configuration can be checked on another machine than its own.
// The error is an Errors with all that cannot be used.
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
		if a.Directory != "" {
			if _, err := os.ReadDir(a.Directory); err != nil {
				errs = append(errs, c.source.errorf(path+".directory", "%w (want a folder of resources)", err))
			}
		}
		for j, s := range a.Servers {
			if s.TLS != nil {
				_, err := s.TLS.Load()
				addTLS(fmt.Sprintf("%s.servers[%d].tls", path, j), err)
			}
		}
	}
	return errs.orNil()
}
