package downstream

import (
	"testing"
	"unsafe"
)

// Go rounds the size of a stream up: one more field would cost each 128 bytes.
func TestStreamStaysWithinGosSizeClass(t *testing.T) {
	const class, header = 768, 8
	if size := unsafe.Sizeof(stream{}) + header; size > class {
		t.Errorf("a stream has %d bytes, and does not fit into %d", size, class)
	}
}
