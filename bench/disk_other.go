//go:build !linux

package main

// written returns 0: bytes written to disk are measured on Linux only.
func written(string) (int64, error) { return 0, nil }
