package upstream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// FuzzFrames has a server send any bytes. However they arrive, the same is read from them, and what is remembered is bounded.
func FuzzFrames(f *testing.F) {
	large := binary.BigEndian.AppendUint32([]byte{0}, largeResponse)
	for i, send := range []func(*http2.Framer) error{
		func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100})
		},
		func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15})
		},
		func(f *http2.Framer) error { return f.WriteData(1, false, append(slices.Clone(large), 1, 2, 3)) },
		func(f *http2.Framer) error { return f.WriteData(3, true, large[:2]) },
		func(f *http2.Framer) error { return f.WriteDataPadded(1, false, large, make([]byte, 3)) },
		func(f *http2.Framer) error { return f.WriteGoAway(0, http2.ErrCodeNo, []byte("bye")) },
	} {
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		for range 2 {
			if err := send(framer); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(b.Bytes(), uint8(i))
	}
	f.Fuzz(func(t *testing.T, sent []byte, chunk uint8) {
		var seen [2][]string
		for i, size := range []int{max(len(sent), 1), int(chunk) + 1} {
			s := frameScanner{
				streams: func(n uint32) { seen[i] = append(seen[i], fmt.Sprint("streams ", n)) },
				goAway:  func() { seen[i] = append(seen[i], "go away") },
			}
			s.messages.large = func(n int) {
				if seen[i] = append(seen[i], fmt.Sprint("large ", n)); n < largeResponse {
					t.Fatalf("%d bytes count as large", n)
				}
			}
			for part := range slices.Chunk(sent, size) {
				s.scan(part)
			}
			if n := len(s.messages.half); n > maxHalfMessages || n > len(sent)/frameHeader {
				t.Fatalf("%d streams are remembered of %d bytes", n, len(sent))
			}
		}
		if !slices.Equal(seen[0], seen[1]) {
			t.Fatalf("at once: %q, in parts of %d: %q", seen[0], chunk, seen[1])
		}
	})
}
