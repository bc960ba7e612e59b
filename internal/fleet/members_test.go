package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// names are the answers of a name server, in turns; the last one stays.
type names struct {
	answers []string // addresses, or an error
}

func (n *names) LookupNetIP(context.Context, string, string) (found []netip.Addr, _ error) {
	answer := n.answers[0]
	if len(n.answers) > 1 {
		n.answers = n.answers[1:]
	}
	for word := range strings.FieldsSeq(answer) {
		ip, err := netip.ParseAddr(word)
		if err != nil {
			return nil, errors.New(answer)
		}
		found = append(found, ip)
	}
	return found, nil
}

func TestMembersOfAName(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers []string
		want    string
	}{
		{"order and form do not matter", []string{"10.0.0.2 10.0.0.1", "10.0.0.1 ::ffff:10.0.0.2"}, "[10.0.0.1:1 10.0.0.2:1]"},
		{"members come and go", []string{"10.0.0.1", "10.0.0.1 fd00::1", "fd00::1"}, "[10.0.0.1:1] [10.0.0.1:1 [fd00::1]:1] [[fd00::1]:1]"},
		{"a member that was not ready for a moment stays", []string{"10.0.0.1 10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.1 10.0.0.2"}, "[10.0.0.1:1 10.0.0.2:1]"},
		{"a member that has gone goes", []string{"10.0.0.1 10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1 10.0.0.2"}, "[10.0.0.1:1 10.0.0.2:1] [10.0.0.1:1] [10.0.0.1:1 10.0.0.2:1]"},
		{"a name server that is gone takes nobody away", []string{"10.0.0.1", "no such host", "no such host", "10.0.0.1"}, "[10.0.0.1:1] unknown [10.0.0.1:1]"},
		{"no members before the first answer", []string{"no such host", "10.0.0.1"}, "unknown [10.0.0.1:1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var got []string
				d := DNS{Host: "peers", Port: 1, Resolver: &names{tt.answers}}
				go d.Follow(ctx, func(members []string, err error) {
					now := fmt.Sprint(members)
					if err != nil {
						now = "unknown"
					}
					if len(got) == 0 || got[len(got)-1] != now {
						got = append(got, now)
					}
				})
				time.Sleep(10 * resolveEvery)
				synctest.Wait()
				if got := strings.Join(got, " "); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// serveName serves the addresses of one name on loopback until the test ends, and returns a resolver that asks there. With
// no addresses, the name does not exist.
func serveName(t *testing.T, name string, addresses func() []string) *net.Resolver {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = socket.Close()
		<-done
	})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<12)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Header, m.Additionals = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, nil
			found := addresses()
			if q.Name.String() != name || len(found) == 0 {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range found {
				if q.Type == dnsmessage.TypeA && q.Name.String() == name {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
					})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = socket.WriteTo(answer, from) // the resolver asks again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
}

func TestMembersComeFromANameServer(t *testing.T) {
	const name = "xds-relay-peers.xds.svc.cluster.local."
	var gone atomic.Bool
	addresses := func() []string {
		if gone.Load() {
			return nil
		}
		return []string{"10.0.0.2", "10.0.0.1"}
	}
	d := DNS{Host: name, Port: 18100, Resolver: serveName(t, name, addresses)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.Follow(ctx, func(members []string, err error) {
		if err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(members); got != "[10.0.0.1:18100 10.0.0.2:18100]" {
			t.Errorf("got %s", got)
		}
		cancel() // Follow returns
	})
	gone.Store(true)
	if _, err := d.lookUp(t.Context(), d.Resolver.LookupNetIP); err == nil {
		t.Error("a name without addresses is no error: the members would go")
	}
}
