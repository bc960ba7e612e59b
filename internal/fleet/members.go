package fleet

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Members says which relays there are.
type Members interface {
	// Follow calls report with the addresses of all members, once they are known and at least whenever they change, or with
	// the reason why it does not know them, until ctx ends.
	Follow(ctx context.Context, report func(addresses []string, err error))
}

// Static is a list of members that does not change.
type Static []string

// Follow implements Members.
func (s Static) Follow(_ context.Context, report func([]string, error)) { report(s, nil) }

// DNS are the addresses of a name, such as that of a headless service.
type DNS struct {
	// Host and Port are those of the members.
	Host string
	Port uint16
	// Resolver is the system's if it is nil.
	Resolver interface {
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	}
}

const (
	// resolveEvery is the time between two look-ups of a name. Kubernetes gives records of headless services a TTL of
	// 30 s or less, and takes some seconds itself.
	resolveEvery = 3 * time.Second
	// resolveWithin bounds a look-up.
	resolveWithin = 5 * time.Second
	// lingerLookUps is how many look-ups in a row must lack a member before it goes. A pod that is not ready for a moment
	// loses no scopes, and one that has ended does not answer, so none come from it.
	lingerLookUps = 3
)

// Follow implements Members. A look-up that finds nothing is an error: a name server that is gone takes no relay away.
func (d DNS) Follow(ctx context.Context, report func([]string, error)) {
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	again := time.NewTicker(resolveEvery)
	defer again.Stop()
	lacking := map[string]int{} // look-ups in a row that lack each member
	for {
		found, err := d.lookUp(ctx, resolver.LookupNetIP)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			found = linger(lacking, found)
		}
		report(found, err)
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// linger returns the members in order after a look-up.
func linger(lacking map[string]int, found []string) []string {
	for address := range lacking {
		if lacking[address]++; lacking[address] == lingerLookUps {
			delete(lacking, address)
		}
	}
	for _, address := range found {
		lacking[address] = 0
	}
	return slices.Sorted(maps.Keys(lacking))
}

// lookUp returns the members in order.
func (d DNS) lookUp(ctx context.Context, look func(context.Context, string, string) ([]netip.Addr, error)) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	found, err := look(ctx, "ip", d.Host)
	if err != nil {
		return nil, err
	}
	members := make([]string, 0, len(found))
	for _, ip := range found {
		members = append(members, net.JoinHostPort(ip.Unmap().String(), strconv.Itoa(int(d.Port))))
	}
	slices.Sort(members)
	return slices.Compact(members), nil
}
