package naming

import (
	"slices"
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// SecretNames finds the names of Secrets in resources, for all clients that are sent a resource: it is decoded for the
// first of them.
type SecretNames struct {
	mu            sync.Mutex
	newer, before map[contentID][]string
}

// contentID identifies the content of a resource.
type contentID struct {
	typeURL string
	hash    uint64
}

// mostSecretNames bounds each of the two maps of SecretNames, in resources. When newer is full, it takes the place of
// before.
const mostSecretNames = 1 << 12

// In returns the names of the Secrets that a resource names, without duplicates. It decodes a resource that it does not
// know without the lock.
func (s *SecretNames) In(r *cache.Resource) []string {
	if r.Redirect() != "" {
		return nil
	}
	id := contentID{r.TypeURL(), r.Hash()}
	s.mu.Lock()
	names, known := s.newer[id]
	if !known {
		names, known = s.before[id]
	}
	s.mu.Unlock()
	if known {
		return names
	}
	references, _ := graph.References(id.typeURL, r.Value()) // clients reject a resource that cannot be read
	for i := range references {
		to := &references[i]
		if to.To.TypeURL == xdstype.SecretV3 && to.Source == graph.Stream {
			names = append(names, to.To.Name)
		}
	}
	slices.Sort(names)
	names = slices.Clip(slices.Compact(names))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.newer) >= mostSecretNames {
		s.newer, s.before = nil, s.newer
	}
	if s.newer == nil {
		s.newer = map[contentID][]string{}
	}
	s.newer[id] = names
	return names
}
