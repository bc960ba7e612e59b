package session

import (
	"testing"
	"unsafe"
)

// There is a session for each type of a stream, and a response for each message. Go rounds their sizes up, so one more
// field can cost 64 bytes.
func TestSizesStayWithinGosSizeClasses(t *testing.T) {
	const header = 8 // what the allocator adds to an object of more than 512 bytes with pointers
	for _, of := range []struct {
		name        string
		size, class uintptr
	}{
		{"Response", unsafe.Sizeof(Response{}), 512},
		{"Delta", unsafe.Sizeof(Delta{}) + header, 576},
		{"SotW", unsafe.Sizeof(SotW{}) + header, 640},
	} {
		if of.size > of.class {
			t.Errorf("a %s has %d bytes, and does not fit into %d", of.name, of.size, of.class)
		}
	}
}
