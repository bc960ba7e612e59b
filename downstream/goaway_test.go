package downstream

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"
)

// However gRPC cuts its writes, the frame comes between two of gRPC's frames, once, and as soon as possible.
func TestGoAwayComesBetweenFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frames [][]byte
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			var out bytes.Buffer
			size := rapid.IntRange(0, 40).Draw(t, "size")
			if err := http2.NewFramer(&out, nil).WriteData(1, false, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			frames = append(frames, out.Bytes())
		}
		stream := slices.Concat(frames...)
		wantedAt := rapid.IntRange(0, len(stream)).Draw(t, "wanted at")
		var out bytes.Buffer
		g := goAway{conn: out.Write}
		wanted := -1 // the frame before which it has to come
		for written := 0; written < len(stream); {
			if written >= wantedAt {
				g.want()
				if wanted < 0 && written > 0 { // the first frame of a connection is gRPC's own
					begins := 0
					for wanted = 0; begins < written; wanted++ {
						begins += len(frames[wanted])
					}
				}
			}
			n := rapid.IntRange(1, len(stream)-written).Draw(t, "bytes")
			if got, err := g.write(stream[written : written+n]); got != n || err != nil {
				t.Fatalf("wrote %d bytes of %d: %v", got, n, err)
			}
			written += n
		}
		read := http2.NewFramer(nil, &out)
		at := -1
		for i := 0; ; i++ {
			f, err := read.ReadFrame()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			away, ok := f.(*http2.GoAwayFrame)
			if !ok {
				continue
			}
			if at >= 0 || away.LastStreamID != 1<<31-1 || away.ErrCode != http2.ErrCodeNo || string(away.DebugData()) == "" {
				t.Fatalf("frame %d is %v, after one at %d", i, away, at)
			}
			at = i
		}
		if at != wanted {
			t.Fatalf("it is frame %d, want %d", at, wanted)
		}
	})
}

// A write to a connection that breaks reports how many bytes were written.
func TestGoAwayOnABrokenConnection(t *testing.T) {
	frame := frames(func(f *http2.Framer) { _ = f.WriteData(1, false, make([]byte, 10)) })
	for taken := range len(frame) + len(goAwayFrame) {
		g := goAway{begun: true, conn: func([]byte) (int, error) { return taken, io.ErrClosedPipe }}
		g.want()
		n, err := g.write(frame)
		if want := max(0, taken-len(goAwayFrame)); n != want || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("of %d bytes: got %d, %v, want %d", taken, n, err, want)
		}
	}
}
