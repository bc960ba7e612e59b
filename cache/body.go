package cache

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// Body is many resources as a part of a SotW response. It is encoded on its first use, by the
// sender, which holds no lock. Until then, 100 MB of resources are only a list of pointers.
type Body struct {
	form   Form
	spell  func(string) string // as in SetWatch
	secret bool

	once      sync.Once
	resources []*Resource // nil once they are encoded
	bytes     mem.SliceBuffer
}

// Buffer returns the encoded resources. All callers share one buffer.
func (b *Body) Buffer() mem.Buffer {
	b.once.Do(b.encode)
	return &b.bytes
}

// ReadOnlyData returns the encoded resources.
func (b *Body) ReadOnlyData() []byte { return b.Buffer().ReadOnlyData() }

// HoldsSecret reports whether one of the resources contains a secret.
func (b *Body) HoldsSecret() bool { return b.secret }

// Len returns the length of the encoded resources in bytes.
func (b *Body) Len() int { return b.Buffer().Len() }

func (b *Body) encode() {
	parts := make([][]byte, 0, len(b.resources))
	size := 0
	for _, r := range b.resources {
		name := r.Name()
		if b.spell != nil {
			name = b.spell(name)
		}
		if r.SharesSotW(name, b.form) {
			parts, size = r.AppendPieces(parts, false), size+r.EncodedSize(false)
			continue
		}
		for _, part := range r.AppendSotW(nil, name, b.form) {
			parts, size = append(parts, part.ReadOnlyData()), size+part.Len()
		}
	}
	b.bytes = make([]byte, 0, size)
	for _, part := range parts {
		b.bytes = append(b.bytes, part...)
	}
	b.resources, b.spell = nil, nil
}
