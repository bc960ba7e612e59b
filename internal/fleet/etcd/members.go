// Package etcd is the list of a fleet's members in etcd. Each relay puts its address under a prefix, with a lease, and
// watches the prefix.
//
// Nothing but addresses is there, and nothing is written but at starts and ends. While etcd is gone, the list stays as it
// was last. A member that is gone is noticed on the connection to it, long before its lease has ended: the list only says
// with whom to connect.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// Members implements fleet.Members.
type Members struct {
	// Endpoints are URLs.
	Endpoints []string
	// Folder is what the keys of the members begin with; the rest of a key is the member's address.
	Folder string
	// Address is the relay's own. If its host is unspecified, the host is the address of the interface that reaches an
	// endpoint.
	Address string
	// Lease is how long the relay stays in the list without a sign of it.
	Lease time.Duration
	// TLS has the credentials for connections to each host among the endpoints. It is nil for plaintext.
	TLS map[string]credentials.TransportCredentials
}

const (
	// answersWithin bounds a call.
	answersWithin = 2 * time.Second
	// revokesWithin bounds the last call: a lease ends by itself.
	revokesWithin = time.Second
	// retriesEvery is the time between two attempts to register.
	retriesEvery = time.Second
	// settlesFor is the time between a change of the list and its reading: members come and go together.
	settlesFor = 50 * time.Millisecond
	// lingerLeases is how many leases long a member stays in the list of those who know it after its key has gone: an
	// etcd that lost its data knows nobody until each relay has registered again.
	lingerLeases = 2
)

// Follow implements fleet.Members.
func (m Members) Follow(ctx context.Context, report func([]string, error)) {
	// The client logs nothing: the relay's log has what is wrong.
	config := clientv3.Config{
		Endpoints: m.Endpoints, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: answersWithin,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retriesEvery, Multiplier: 1, Jitter: 0.2, MaxDelay: retriesEvery},
			MinConnectTimeout: answersWithin,
		})},
	}
	if m.TLS != nil {
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(newHostCredentials(m.TLS)))
	}
	var client *clientv3.Client
	for {
		var err error
		if client, err = clientv3.New(config); err == nil {
			break
		}
		report(nil, err)
		select {
		case <-time.After(retriesEvery):
		case <-ctx.Done():
			return
		}
	}
	defer client.Close()
	r := roll{lingers: lingerLeases * m.Lease}
	for {
		err := m.attend(ctx, client, &r, report)
		if ctx.Err() != nil {
			return
		}
		report(nil, err)
		select {
		case <-time.After(retriesEvery):
		case <-ctx.Done():
			return
		}
	}
}

var errLease = errors.New("etcd has ended the relay's lease, or did not answer while it lasted")

// attend is a member until ctx or the lease ends.
func (m Members) attend(ctx context.Context, client *clientv3.Client, r *roll, report func([]string, error)) error {
	address, err := m.address(ctx)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, answersWithin)
	lease, err := client.Grant(within, int64(m.Lease/time.Second))
	cancel()
	if err != nil {
		return fmt.Errorf("etcd gives no lease: %w", err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID), concurrency.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("etcd gives no lease: %w", err)
	}
	defer func() {
		session.Orphan()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokesWithin)
		defer cancel()
		_, _ = client.Revoke(within, lease.ID) // otherwise it ends by itself
	}()

	// A key of this address may be there from before, with a lease that ends.
	if err := m.put(ctx, client, address, lease.ID); err != nil {
		return err
	}
	ctx, cancel = context.WithCancel(ctx)
	defer cancel() // ends the watch
	watch := m.watch(ctx, client)
	again := time.NewTicker(m.Lease)
	defer again.Stop()
	for {
		listed, err := m.list(ctx, client)
		if err == nil && !slices.Contains(listed, address) {
			if err = m.put(ctx, client, address, lease.ID); err == nil {
				listed = append(listed, address)
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			report(nil, err)
		default:
			report(r.call(time.Now(), listed), nil)
		}
		select {
		case change, open := <-watch:
			if !open || change.Err() != nil {
				watch = nil // until again
			}
			select {
			case <-time.After(settlesFor):
			case <-ctx.Done():
			}
		case <-again.C:
			if watch == nil {
				watch = m.watch(ctx, client)
			}
		case <-session.Done():
			return errLease
		case <-ctx.Done():
		}
	}
}

// watch returns a channel that has a value when the list may have changed. Nothing depends on it, because the list is
// read again with each lease: a watch on an etcd that lost its data sees nothing for long.
func (m Members) watch(ctx context.Context, client *clientv3.Client) clientv3.WatchChan {
	return client.Watch(clientv3.WithRequireLeader(ctx), m.Folder, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithCreatedNotify())
}

// list returns the addresses under the prefix.
func (m Members) list(ctx context.Context, client *clientv3.Client) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	found, err := client.Get(ctx, m.Folder, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("etcd does not list the members: %w", err)
	}
	for _, kv := range found.Kvs {
		address := strings.TrimPrefix(string(kv.Key), m.Folder)
		if _, _, err := net.SplitHostPort(address); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

func (m Members) put(ctx context.Context, client *clientv3.Client, address string, lease clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	if _, err := client.Put(ctx, m.Folder+address, address, clientv3.WithLease(lease)); err != nil {
		return fmt.Errorf("etcd does not take the relay's address: %w", err)
	}
	return nil
}

// address returns the relay's own address.
func (m Members) address(ctx context.Context) (string, error) {
	host, port, err := net.SplitHostPort(m.Address)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return m.Address, nil
	}
	for _, e := range m.Endpoints {
		u, urlErr := url.Parse(e)
		if urlErr != nil {
			err = urlErr
			continue
		}
		to := net.JoinHostPort(u.Hostname(), "9") // nothing is sent
		conn, dialErr := new(net.Dialer).DialContext(ctx, "udp", to)
		if dialErr != nil {
			err = dialErr
			continue
		}
		own, _, splitErr := net.SplitHostPort(conn.LocalAddr().String())
		_ = conn.Close() // it has sent nothing
		if err = splitErr; err == nil {
			return net.JoinHostPort(own, port), nil
		}
	}
	return "", fmt.Errorf("no interface reaches etcd, so the relay does not know its own address (fleet.advertise names it): %w", err)
}

// roll has who was in the list.
type roll struct {
	lingers time.Duration
	// missing has when each known member was first not listed; zero if it was listed last time.
	missing map[string]time.Time
}

// call returns the members, in order, after a list was read.
func (r *roll) call(now time.Time, listed []string) (members []string) {
	if r.missing == nil {
		r.missing = map[string]time.Time{}
	}
	for address, since := range r.missing {
		if since.IsZero() {
			r.missing[address] = now
		}
	}
	for _, address := range listed {
		r.missing[address] = time.Time{}
	}
	for address, since := range r.missing {
		if !since.IsZero() && now.Sub(since) >= r.lingers {
			delete(r.missing, address)
			continue
		}
		members = append(members, address)
	}
	slices.Sort(members)
	return members
}

// hostCredentials are credentials for each host: certificates are verified for the host of their endpoint.
type hostCredentials struct {
	credentials.TransportCredentials // those of one of the hosts
	hosts                            map[string]credentials.TransportCredentials
}

func newHostCredentials(hosts map[string]credentials.TransportCredentials) hostCredentials {
	for _, c := range hosts {
		return hostCredentials{c, hosts}
	}
	return hostCredentials{}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c hostCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	host := authority
	if h, _, err := net.SplitHostPort(authority); err == nil {
		host = h
	}
	of := c.hosts[host]
	if of == nil {
		return nil, nil, fmt.Errorf("%q is no endpoint of etcd", authority)
	}
	return of.ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (c hostCredentials) Clone() credentials.TransportCredentials { return c }
