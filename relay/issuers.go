package relay

// The public keys of the issuers of clients' tokens.

import (
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity/tokens"
	"github.com/xds-relay/xds-relay/internal/certs"
)

// issuers has the keys that the relay fetches from URLs. Listeners share the keys of one URL.
type issuers struct {
	mu      sync.Mutex
	remotes map[tokens.RemoteOptions]*tokens.Remote
}

// roleKeys is the `role` label of an issuer's keys.
const roleKeys = "jwks"

// verifier returns the verifier of a listener's tokens, nil if the listener does not use tokens.
func (r *Relay) verifier(l *configs.Listener, part *certs.Part) (*tokens.Verifier, error) {
	j := l.JWT
	if j == nil {
		return nil, nil
	}
	source, err := r.keysOf(j, part)
	if err != nil {
		return nil, err
	}
	return tokens.New(tokens.Options{Issuer: j.Issuer, Audiences: j.Audiences, Source: source}), nil
}

func (r *Relay) keysOf(j *configs.JWT, part *certs.Part) (tokens.Source, error) {
	if j.JWKSFile == "" {
		return r.remoteKeys(j), nil
	}
	file, err := certs.Follow(part, certs.Kind[*tokens.Keys]{
		Role: roleKeys,
		Parse: func(_ []string, contents [][]byte) (*tokens.Keys, error) {
			keys, err := tokens.ParseKeys(contents[0])
			if err == nil {
				keys.LogWeak(r.log, j.JWKSFile)
			}
			return keys, err
		},
	}, j.JWKSFile)
	if err != nil {
		return nil, err
	}
	return tokens.Fixed(file.Get), nil
}

func (r *Relay) remoteKeys(j *configs.JWT) *tokens.Remote {
	key := r.issuerOf(j)
	r.issuers.mu.Lock()
	defer r.issuers.mu.Unlock()
	if remote, ok := r.issuers.remotes[key]; ok {
		return remote
	}
	if r.issuers.remotes == nil {
		r.issuers.remotes = map[tokens.RemoteOptions]*tokens.Remote{}
	}
	remote := tokens.NewRemote(key)
	r.issuers.remotes[key] = remote
	return remote
}

func (r *Relay) issuerOf(j *configs.JWT) tokens.RemoteOptions {
	return tokens.RemoteOptions{URL: j.JWKSURL, CAFile: j.JWKSCAFile, TokenFile: j.JWKSTokenFile, Log: r.log}
}

// endUnusedIssuers stops fetching keys that no listener of a configuration uses.
func (r *Relay) endUnusedIssuers(cfg *configs.Config) {
	r.issuers.mu.Lock()
	defer r.issuers.mu.Unlock()
	for key, remote := range r.issuers.remotes {
		if !slices.ContainsFunc(cfg.Listeners, func(l configs.Listener) bool { return l.JWT != nil && r.issuerOf(l.JWT) == key }) {
			delete(r.issuers.remotes, key)
			remote.Close()
		}
	}
}

// failures returns how many fetches of keys failed.
func (i *issuers) failures() []admin.Sample {
	i.mu.Lock()
	defer i.mu.Unlock()
	byURL := map[string]uint64{}
	for o, remote := range i.remotes {
		byURL[o.URL] += remote.Failures()
	}
	var samples []admin.Sample
	for url, n := range byURL {
		samples = append(samples, admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{
			attribute.String("role", roleKeys), attribute.String("path", url),
		}})
	}
	return samples
}

func (i *issuers) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, remote := range i.remotes {
		remote.Close()
	}
}
