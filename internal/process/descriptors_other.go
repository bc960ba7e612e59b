//go:build !linux && !darwin

package process

// MaxDescriptors returns 0: the limit is not known.
func MaxDescriptors() uint64 { return 0 }
