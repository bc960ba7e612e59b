package upstream

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"
)

// The result of the scanner does not depend on how the bytes are cut.
func TestScannerReadsStreamLimitsAndGoAwayInBytesOfAnyLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		var want []string
		reportedUp := false
		for range rapid.IntRange(0, 8).Draw(t, "frames") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				_ = framer.WriteData(1, false, make([]byte, rapid.IntRange(0, 50).Draw(t, "length")))
			case 1:
				_ = framer.WriteSettingsAck()
			case 2:
				_ = framer.WriteGoAway(0, http2.ErrCodeNo, []byte("bye"))
				want = append(want, "go away")
			case 3:
				_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
				if !reportedUp {
					want = append(want, fmt.Sprint(uint32(math.MaxUint32)))
				}
				reportedUp = true
			default:
				streams := rapid.Uint32().Draw(t, "streams")
				_ = framer.WriteSettings(
					http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15},
					http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streams},
				)
				want = append(want, fmt.Sprint(streams))
				reportedUp = true
			}
		}
		var got []string
		s := frameScanner{
			streams: func(n uint32) { got = append(got, fmt.Sprint(n)) },
			goAway:  func() { got = append(got, "go away") },
		}
		for all := b.Bytes(); len(all) > 0; {
			n := rapid.IntRange(1, len(all)).Draw(t, "cut")
			s.scan(all[:n])
			all = all[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
