//go:build !unix

package process

// MonotonicTime returns nothing: there is no systemd.
func MonotonicTime() string { return "" }
