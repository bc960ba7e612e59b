package relay

// The keys of those who issue clients' tokens.

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/certs"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity/tokens"
)

// issuers has the keys that listeners use, each once. It belongs to Listen and Close.
type issuers struct {
	files   map[string]tokens.Source
	remotes map[tokens.RemoteOptions]*tokens.Remote
}

// roleKeys is the role of an issuer's keys in metrics.
const roleKeys = "jwks"

// verifier returns what verifies the tokens of a listener: nil if tokens prove nothing there.
func (r *Relay) verifier(l *configs.Listener) (*tokens.Verifier, error) {
	j := l.JWT
	if j == nil {
		return nil, nil
	}
	source, err := r.keysOf(j)
	if err != nil {
		return nil, err
	}
	return tokens.New(tokens.Options{Issuer: j.Issuer, Audiences: j.Audiences, Source: source}), nil
}

func (r *Relay) keysOf(j *configs.JWT) (tokens.Source, error) {
	if j.JWKSFile == "" {
		return r.remoteKeys(j), nil
	}
	if source, ok := r.issuers.files[j.JWKSFile]; ok {
		return source, nil
	}
	file, err := certs.Follow(r.credentials, certs.Kind[*tokens.Keys]{
		Role:  roleKeys,
		Parse: func(_ []string, contents [][]byte) (*tokens.Keys, error) { return tokens.ParseKeys(contents[0]) },
	}, j.JWKSFile)
	if err != nil {
		return nil, err
	}
	if r.issuers.files == nil {
		r.issuers.files = map[string]tokens.Source{}
	}
	source := tokens.Fixed(file.Get)
	r.issuers.files[j.JWKSFile] = source
	return source, nil
}

func (r *Relay) remoteKeys(j *configs.JWT) *tokens.Remote {
	key := tokens.RemoteOptions{URL: j.JWKSURL, CAFile: j.JWKSCAFile, TokenFile: j.JWKSTokenFile, Log: r.log}
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

// failures are the fetches of keys that failed.
func (i *issuers) failures() []admin.Sample {
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
	for _, remote := range i.remotes {
		remote.Close()
	}
}
