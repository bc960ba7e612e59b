package fleet

import (
	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
)

// Rendezvous hashing: the member with the highest score for a scope owns it. When a member comes or goes, only the scopes
// that it wins or had won move.

// hashOf returns the hash of a member's address, or of an encoded scope.
func hashOf[T string | []byte](of T) uint64 { return xxhash.Sum64String(string(of)) }

// scopeHash returns the hash of a scope, which is the same on all relays.
func scopeHash(s cache.Scope) uint64 { return hashOf(encodeScope(s)) }

// score returns how well a member suits a scope. Both are given by their hashes.
func score(member, scope uint64) uint64 {
	// The finalizer of MurmurHash3: each bit of the sum changes half of the bits of the score.
	h := member ^ scope
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
