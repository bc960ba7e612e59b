package downstream

import (
	"errors"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials/insecure"
)

// failing returns the only failure that is counted, "" if there is none.
func failing(t *testing.T, s *Server) string {
	t.Helper()
	failure := ""
	for reason, n := range s.Stats().ConnFailures {
		if n > 1 || n > 0 && failure != "" {
			t.Fatalf("the failures are %v", s.Stats().ConnFailures)
		}
		if n > 0 {
			failure = reason
		}
	}
	return failure
}

// The page for operators explains each failure, and no other one.
func TestThePageExplainsWhyConnectionsFail(t *testing.T) {
	page, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Clients that cannot connect\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var explained, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllStringSubmatch(strings.Replace(section, "| `reason` |", "", 1), -1) {
		explained = append(explained, row[1])
	}
	for f := range numConnFailures {
		want = append(want, f.String())
	}
	if !slices.Equal(explained, want) {
		t.Errorf("docs/operate.md explains %q, want %q", explained, want)
	}
}

// However a client's first bytes are cut, they say what it speaks. The connection ends with the first byte that HTTP/2
// does not begin with, and does not wait for as many bytes as its preface has.
func TestTheFirstBytesSayWhatAClientSpeaks(t *testing.T) {
	for _, tt := range []struct{ first, want string }{
		{http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00", ""},
		{http2.ClientPreface[:20], ""},
		{"\x16\x03\x01\x02\x00\x01\x00", "tls_to_plaintext"},
		{"GET / HTTP/1.1\r\n", "http1"},
		{"POST /v3/discovery:clusters HTTP/1.1\r\n", "http1"},
		{"PUT / HTTP/1.1\r\n", "http1"},
		{"PATCH / HTTP/1.1\r\n", "http1"},
		{"OPTIONS * HTTP/1.1\r\n", "http1"},
		{"PRI * HTTP/1.1\r\n", "not_http2"},
		{"EHLO relay\r\n", "not_http2"},
		{"\x00\x00\x00\x04", "not_http2"},
	} {
		for _, size := range []int{1, 2, 5, len(tt.first)} {
			synctest.Test(t, func(t *testing.T) {
				server, _ := newTestServer(nil, 0)
				client, relay := metered(t, server)
				var err error
				for chunk := range slices.Chunk([]byte(tt.first), size) {
					if err = transfer(t, client, relay, chunk); err != nil {
						break
					}
				}
				if got := failing(t, server); got != tt.want || (err != nil) != (tt.want != "") || err != nil && !errors.Is(err, errNotHTTP2) {
					t.Errorf("%q, in pieces of %d bytes: it counts as %q, and reading fails with %v, want %q", tt.first, size, got, err, tt.want)
				}
			})
		}
	}
}

// A client that connects again and again has few lines in the log, and one problem with its number.
func TestFailedConnectionsAreNotedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, log := newTestServer(nil, 0)
		door := NewDoor(ListenerOptions{})
		fail := func(n int, first string) {
			t.Helper()
			for range n {
				client, c := net.Pipe()
				p := pipeListener{next: make(chan net.Conn, 1)}
				p.next <- c
				accepted, err := server.Listen(p, ListenerOptions{Door: door}).Accept()
				if err != nil {
					t.Fatal(err)
				}
				relay, _, err := Metered(insecure.NewCredentials()).ServerHandshake(accepted)
				if err != nil {
					t.Fatal(err)
				}
				if err := transfer(t, client, relay, []byte(first)); !errors.Is(err, errNotHTTP2) {
					t.Fatal(err)
				}
				_ = errors.Join(client.Close(), relay.Close())
			}
		}
		began := time.Now()
		fail(500, "\x16\x03\x01")
		if lines := log.take(); len(lines) != 10 || !strings.Contains(lines[0], "address=pipe refused=tls_to_plaintext reason=the client speaks TLS") {
			t.Errorf("the log has %q", lines)
		}
		fail(1, "GET / HTTP/1.1\r\n")
		if lines := log.take(); len(lines) != 1 {
			t.Errorf("one kind of failure hides another: the log has %q", lines)
		}
		time.Sleep(2 * time.Minute)
		fail(1, "\x16\x03\x01")
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "skipped=490") {
			t.Errorf("the log has %q", lines)
		}
		got := door.FailedConns()
		if len(got) != 2 || got[0].Failure != TLSToPlaintext || got[0].Count != 501 || !got[0].Since.Equal(began) || !got[0].Last.Equal(began.Add(2*time.Minute)) || got[0].Peer != "pipe" || got[1].Failure != HTTP1 {
			t.Errorf("what has failed lately is %+v", got)
		}
		time.Sleep(failedFor - time.Minute)
		if got := door.FailedConns(); len(got) != 1 || got[0].Failure != TLSToPlaintext {
			t.Errorf("later it is %+v", got)
		}
		time.Sleep(time.Minute)
		if got := door.FailedConns(); len(got) != 0 {
			t.Errorf("in the end it is %+v", got)
		}
		fail(1, "\x16\x03\x01")
		if got := door.FailedConns(); len(got) != 1 || got[0].Count != 1 || !got[0].Since.Equal(time.Now()) {
			t.Errorf("it begins again with %+v", got)
		}
	})
}
