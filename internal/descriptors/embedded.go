package descriptors

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"sync"
)

// compressed is a FileDescriptorSet: the files of Envoy's contrib extensions, and those of their imports that no package
// of the relay defines. `make generate` writes it.
//
//go:embed embedded.pb.gz
var compressed []byte

// embedded returns the types of the embedded set. It leaves out files whose imports are not linked into the program,
// which is the case in tests of single packages.
var embedded = sync.OnceValue(func() *Set {
	b := newBuilder()
	if unzip, err := gzip.NewReader(bytes.NewReader(compressed)); err == nil {
		if text, err := io.ReadAll(unzip); err == nil {
			_ = b.add("embedded.pb.gz", text)
		}
	}
	for _, s := range b.order {
		_ = b.build(s)
	}
	return b.set("")
})
