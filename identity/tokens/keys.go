package tokens

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// Keys are the public keys of an issuer. They do not change.
type Keys struct {
	all  []jose.JSONWebKey
	byID map[string][]jose.JSONWebKey
}

// maxKeys bounds the cost of a token without a key id, for which all keys are tried. Issuers have two or three.
const maxKeys = 100

// ParseKeys returns the keys in a JSON Web Key Set. It leaves out keys that cannot verify signatures, and symmetric
// ones, with which everyone who knows them could sign. RFC 7517: "JWK Set Format".
func ParseKeys(set []byte) (*Keys, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &raw); err != nil {
		return nil, fmt.Errorf("is not a JSON Web Key Set: %w", err)
	}
	if len(raw.Keys) > maxKeys {
		return nil, fmt.Errorf("has %d keys (want at most %d)", len(raw.Keys), maxKeys)
	}
	keys := &Keys{byID: map[string][]jose.JSONWebKey{}}
	for _, text := range raw.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(text); err != nil || !verifies(&key) {
			continue // RFC 7517: keys that are not understood are ignored
		}
		keys.all = append(keys.all, key)
		keys.byID[key.KeyID] = append(keys.byID[key.KeyID], key)
	}
	if len(keys.all) == 0 {
		return nil, errors.New("has no public key for signatures (want keys of kty RSA, EC or OKP)")
	}
	return keys, nil
}

func verifies(key *jose.JSONWebKey) bool {
	return key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig")
}

// candidates returns the keys that may have signed a token with this header. unknown: no key has the header's key id.
func (k *Keys) candidates(h *jose.Header) (keys []jose.JSONWebKey, unknown bool) {
	named := k.all
	if h.KeyID != "" {
		named = k.byID[h.KeyID]
	}
	for _, key := range named {
		if key.Algorithm == "" || key.Algorithm == h.Algorithm {
			keys = append(keys, key)
		}
	}
	return keys, len(named) == 0
}
