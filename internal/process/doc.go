// Package process has what concerns the process rather than xDS: the memory limit, when
// garbage is collected, the limit on file descriptors, and a shutdown that ends in time.
//
// The collector occupies all processors, which delays all authorities at once: while large responses are processed, there
// are fewer collections, and each delays other goroutines less (gctuner.go). Storing and sending an update follows no weak
// pointer, because Go stops goroutines that do near the end of a collection: package recent is for that.
package process
