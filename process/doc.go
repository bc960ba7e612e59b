// Package process has what concerns the process rather than xDS: the memory limit, when
// garbage is collected, the limit on file descriptors, and a shutdown that ends in time.
package process
