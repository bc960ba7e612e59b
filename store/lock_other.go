//go:build !unix

package store

import "os"

// lock leaves it to bbolt to find out that another process has the file.
func lock(*os.File, bool) error { return nil }
