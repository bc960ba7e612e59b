package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		{"a name server that is gone takes nobody away", []string{"10.0.0.1", "no such host", "no such host", "10.0.0.1"}, "[10.0.0.1:1]"},
		{"no members before the first answer", []string{"no such host", "10.0.0.1"}, "[10.0.0.1:1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var got []string
				var log bytes.Buffer
				d := DNS{Host: "peers", Port: 1, Resolver: &names{tt.answers}, Log: slog.New(slog.NewTextHandler(&log, nil))}
				go d.Follow(ctx, func(members []string) { got = append(got, fmt.Sprint(members)) })
				time.Sleep(10 * resolveEvery)
				if got := strings.Join(got, " "); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if failing := strings.Contains(fmt.Sprint(tt.answers), "host"); strings.Count(log.String(), "cannot be looked up") != map[bool]int{true: 1}[failing] {
					t.Errorf("a failure is not logged once:\n%s", &log)
				}
			})
		})
	}
}
