//go:build !linux && !darwin

package process

// ForbidCoreDumps does nothing here.
func ForbidCoreDumps() error { return nil }
