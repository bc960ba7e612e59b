package upstream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"
)

// sendingStream has the messages of a server's stream.
type sendingStream struct {
	bytes []byte
	sent  int
	large [][2]int // of each large message, where its prefix ends in bytes, and its length
}

// message appends a message of gRPC.
func (s *sendingStream) message(length int) {
	s.bytes = binary.BigEndian.AppendUint32(append(s.bytes, 0), uint32(length))
	if length >= largeResponse {
		s.large = append(s.large, [2]int{len(s.bytes), length})
	}
	s.bytes = append(s.bytes, make([]byte, length)...)
}

// send returns the next n bytes, and the lengths of the large messages whose prefix ends in them.
func (s *sendingStream) send(n int) (b []byte, announced []string) {
	b = s.bytes[s.sent:][:n]
	for _, m := range s.large {
		if m[0] > s.sent && m[0] <= s.sent+n {
			announced = append(announced, fmt.Sprintf("large %d", m[1]))
		}
	}
	s.sent += n
	return b, announced
}

// The result of the scanner does not depend on how the bytes are cut.
func TestScannerReadsWhatGRPCDoesNotExposeInBytesOfAnyLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		var want []string
		reportedUp := false
		streams := map[uint32]*sendingStream{1: {}, 3: {}}
		for range rapid.IntRange(0, 12).Draw(t, "frames") {
			stream := rapid.SampledFrom([]uint32{1, 3}).Draw(t, "stream")
			switch rapid.IntRange(0, 8).Draw(t, "kind") {
			case 0, 1, 2:
				s := streams[stream]
				for range rapid.IntRange(0, 3).Draw(t, "messages") {
					s.message(rapid.SampledFrom([]int{0, 1, 40, largeResponse - 1, largeResponse, largeResponse + 40}).Draw(t, "length"))
				}
				data, large := s.send(rapid.IntRange(0, len(s.bytes)-s.sent).Draw(t, "sent"))
				want = append(want, large...)
				last := rapid.IntRange(0, 3).Draw(t, "last") == 0
				_ = framer.WriteData(stream, last, data)
				if last {
					streams[stream] = &sendingStream{}
				}
			case 3: // the end of a stream: another one may have its number
				if rapid.Bool().Draw(t, "reset") {
					_ = framer.WriteRSTStream(stream, http2.ErrCodeCancel)
				} else {
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: true})
				}
				streams[stream] = &sendingStream{}
			case 4:
				_ = framer.WriteSettingsAck()
			case 5:
				_ = framer.WriteGoAway(0, http2.ErrCodeNo, []byte("bye"))
				want = append(want, "go away")
			case 6:
				_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
				if !reportedUp {
					want = append(want, fmt.Sprint(uint32(math.MaxUint32)))
				}
				reportedUp = true
			case 7:
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true})
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
		s.messages.large = func(n int) { got = append(got, fmt.Sprintf("large %d", n)) }
		for all := b.Bytes(); len(all) > 0; {
			n := rapid.OneOf(rapid.IntRange(1, min(20, len(all))), rapid.IntRange(1, len(all))).Draw(t, "cut")
			s.scan(all[:n])
			all = all[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// A server cannot make the scanner remember more than some streams, whatever it sends.
func TestScannerForgetsServersThatCutMessagesShort(t *testing.T) {
	s := frameScanner{}
	s.messages.large = func(int) {}
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	for stream := range uint32(2 * maxHalfMessages) {
		_ = framer.WriteData(2*stream+1, false, []byte{0})
		s.scan(b.Bytes())
		b.Reset()
		if n := len(s.messages.half); n > maxHalfMessages {
			t.Fatalf("it remembers %d streams", n)
		}
	}
	if s.messages.large != nil {
		t.Error("it still scans for large messages")
	}
}

// A length that no message can have is not announced, and the scanner goes on.
func TestScannerSurvivesTheLongestLength(t *testing.T) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	_ = framer.WriteData(1, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	gone := false
	s := frameScanner{goAway: func() { gone = true }}
	s.messages.large = func(n int) { t.Errorf("a message of %d bytes is announced", n) }
	if s.scan(b.Bytes()); !gone {
		t.Error("GOAWAY was not seen")
	}
}

// The scanner does not parse padded data, which no gRPC server sends, and goes on with all else.
func TestScannerLeavesPaddedDataAlone(t *testing.T) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	_ = framer.WriteDataPadded(1, false, []byte{0, 1, 0, 0, 0}, make([]byte, 2))
	_ = framer.WriteData(3, false, []byte{0, 1, 0, 0, 0})
	_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	gone := false
	s := frameScanner{goAway: func() { gone = true }}
	s.messages.large = func(n int) { t.Errorf("a message of %d bytes is announced", n) }
	if s.scan(b.Bytes()); !gone {
		t.Error("GOAWAY was not seen")
	}
}
