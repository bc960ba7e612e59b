package integration

// Answers over REST that take the memory of a small container.

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLargeAnswersDoNotUseUpTheMemory checks that a relay in a small container survives clients over REST whose answers
// are large: because many names that they have made up all have one large resource as their alternative; and because
// they do not read them. Meanwhile another client, from the same address, sees all updates in time, and yet another one
// polls.
func TestLargeAnswersDoNotUseUpTheMemory(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector takes memory")
	}
	t.Parallel()
	for _, attack := range []struct {
		name         string
		conns, names int
		reads        bool
	}{
		{"with many names", 20, 3000, true},
		{"that nobody reads", 400, 8, false},
	} {
		t.Run(attack.name, func(t *testing.T) {
			attackContainer(t, unfinishedFor, func(ctx context.Context, at *target, attacking *sync.WaitGroup) {
				for i := range attack.conns {
					attacking.Go(func() {
						for round := 0; ctx.Err() == nil; round++ {
							pollLarge(ctx, at, attack.names, fmt.Sprintf("%d-%d", i, round), attack.reads)
						}
					})
				}
				attacking.Go(func() {
					pace := time.NewTicker(canaryPace)
					defer pace.Stop()
					polls := 0
					for ; ctx.Err() == nil; polls++ {
						if code := pollSmall(ctx, at); code != "200" && ctx.Err() == nil {
							t.Errorf("poll %d gets %s", polls, code)
						}
						<-pace.C
					}
					t.Logf("%d polls", polls)
				})
			})
		})
	}
}

// pollLarge requests made-up names of the large resource over REST, and reads the answer, or stays without that.
func pollLarge(ctx context.Context, at *target, names int, prefix string, reads bool) {
	var b strings.Builder
	b.WriteString(`{"node": {"id": "large"}, "resource_names": [`)
	for i := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"xdstp://down.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/%s-%d#alt=%s"`, prefix, i, largeName)
	}
	b.WriteString("]}")
	conn := post(ctx, at, b.String())
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if reads {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	await := time.NewTimer(unfinishedFor)
	defer await.Stop()
	select {
	case <-await.C:
	case <-ctx.Done():
	}
}

// pollSmall requests the canary's resource, and returns the status of the answer.
func pollSmall(ctx context.Context, at *target) string {
	conn := post(ctx, at, `{"node": {"id": "small"}, "resource_names": ["`+canaryName+`"]}`)
	if conn == nil {
		return "no connection"
	}
	defer func() { _ = conn.Close() }()
	answer, err := io.ReadAll(conn)
	if fields := strings.Fields(string(answer)); len(fields) > 1 {
		return fields[1]
	}
	return fmt.Sprint(err)
}

// post sends a request for endpoints over REST. The connection closes with ctx.
func post(ctx context.Context, at *target, body string) net.Conn {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", at.rest)
	if err != nil {
		return nil
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /v3/discovery:endpoints HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		_ = conn.Close()
		return nil
	}
	return conn
}
