package customresource

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// lastEventsPeriod is how long a watch outlives its definition.
const lastEventsPeriod = time.Second

// streams are the watches of each custom resource. A watch uses one schema, and ends if its definition
// changes. Clients then resume with the new schema.
type streams struct {
	resolve func(context.Context, definitions.Lookup) (*definitions.Definition, error)

	mu  sync.Mutex
	all map[schema.GroupResource]map[request.Cluster]sets.Set[*stream]
}

type stream struct {
	ctx context.Context //nolint:containedctx // of the request
	end context.CancelFunc
	of  definitions.Lookup
	// last ends the stream after its definition was deleted.
	last *time.Timer
	// served is empty until the definition is resolved. Until then, changed is set if it has changed since the
	// stream was added.
	served  served
	changed bool
}

// served identifies how a stream is served.
type served struct {
	hash, identity string
	stored         bool
}

func (s *streams) add(ctx context.Context, end context.CancelFunc, of definitions.Lookup) *stream {
	st := &stream{ctx: ctx, end: end, of: of}
	s.mu.Lock()
	defer s.mu.Unlock()
	clusters := s.all[of.Resource]
	if clusters == nil {
		clusters = map[request.Cluster]sets.Set[*stream]{}
		s.all[of.Resource] = clusters
	}
	if clusters[of.Cluster] == nil {
		clusters[of.Cluster] = sets.Set[*stream]{}
	}
	clusters[of.Cluster].Insert(st)
	return st
}

func (s *streams) remove(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.last != nil {
		st.last.Stop()
	}
	clusters := s.all[st.of.Resource]
	delete(clusters[st.of.Cluster], st)
	if len(clusters[st.of.Cluster]) == 0 {
		delete(clusters, st.of.Cluster)
	}
	if len(clusters) == 0 {
		delete(s.all, st.of.Resource)
	}
}

// serve sets the resolved definition of a stream. It returns false if the definition has changed in the
// meantime and must be resolved again.
func (s *streams) serve(st *stream, with *definitions.Definition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.changed {
		st.changed = false
		return false
	}
	st.served = servedBy(with)
	return true
}

// changed ends the streams with a schema that is not served any more.
func (s *streams) changed(c definitions.Change) {
	if c.Schema == nil {
		s.checkAll()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clusters := s.all[c.Schema.Resource]
	if c.Cluster != (request.Cluster{}) {
		clusters = map[request.Cluster]sets.Set[*stream]{c.Cluster: clusters[c.Cluster]}
	}
	for _, of := range clusters {
		for st := range of {
			if st.served.hash == "" || st.served.hash == c.Schema.Hash && st.served.identity == c.Identity {
				st.endLocked(c.Removed)
			}
		}
	}
}

func servedBy(d *definitions.Definition) served {
	return served{d.Schema.Hash, d.Identity, d.Objects == nil}
}

// checkAll ends the streams with a changed definition.
func (s *streams) checkAll() {
	s.mu.Lock()
	all := map[*stream]served{}
	for _, clusters := range s.all {
		for _, of := range clusters {
			for st := range of {
				if st.served.hash == "" {
					st.changed = true
				} else {
					all[st] = st.served
				}
			}
		}
	}
	s.mu.Unlock()
	for st, before := range all {
		d, err := s.resolve(st.ctx, st.of)
		if err == nil && d != nil && servedBy(d) == before {
			continue
		}
		s.mu.Lock()
		st.endLocked(err == nil && d == nil)
		s.mu.Unlock()
	}
}

// endLocked ends a stream, or requests another resolve if it is not served yet. If the definition was deleted, it
// waits, so that clients receive the deletions of its objects.
func (st *stream) endLocked(deleted bool) {
	switch {
	case st.served.hash == "":
		st.changed = true
	case !deleted:
		st.end()
	case st.last == nil:
		st.last = time.AfterFunc(lastEventsPeriod, st.end)
	}
}
