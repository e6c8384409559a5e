package customresource

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// lastEventsPeriod is how long a watch outlives its definition.
const lastEventsPeriod = time.Second

// streams knows the watches of each custom resource, to end them when what they
// are served with changes: a stream has one schema from start to end. Clients
// resume, and see the new schema.
type streams struct {
	// resolve says what is served now.
	resolve func(context.Context, definitions.Lookup) (*definitions.Definition, error)

	mu  sync.Mutex
	all map[schema.GroupResource]map[request.Cluster]map[*stream]struct{}
}

// stream is one watch.
type stream struct {
	ctx context.Context //nolint:containedctx // of the request
	end context.CancelFunc
	of  definitions.Lookup
	// last ends the stream of a definition that is gone.
	last *time.Timer
	// served is what the stream is served with, which has no hash until that is known.
	// Until then, changed says that what is served has changed since the stream was
	// added.
	served  served
	changed bool
}

// served is what a stream is of: nothing that is served differently is the same.
type served struct {
	hash, identity string
	stored         bool
}

func newStreams(resolve func(context.Context, definitions.Lookup) (*definitions.Definition, error)) *streams {
	return &streams{resolve: resolve, all: map[schema.GroupResource]map[request.Cluster]map[*stream]struct{}{}}
}

func (s *streams) add(ctx context.Context, end context.CancelFunc, of definitions.Lookup) *stream {
	st := &stream{ctx: ctx, end: end, of: of}
	s.mu.Lock()
	defer s.mu.Unlock()
	clusters := s.all[of.Resource]
	if clusters == nil {
		clusters = map[request.Cluster]map[*stream]struct{}{}
		s.all[of.Resource] = clusters
	}
	if clusters[of.Cluster] == nil {
		clusters[of.Cluster] = map[*stream]struct{}{}
	}
	clusters[of.Cluster][st] = struct{}{}
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

// serve says that a stream is about to be served with the definition that was
// resolved last. It returns false if what is served has changed in the meantime:
// then it is to be resolved again.
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

// changed ends the streams that are served with a schema which is not served any
// more where they are.
func (s *streams) changed(c definitions.Change) {
	if c.Schema == nil {
		s.checkAll()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clusters := s.all[c.Schema.Resource]
	if c.Cluster != (request.Cluster{}) {
		clusters = map[request.Cluster]map[*stream]struct{}{c.Cluster: clusters[c.Cluster]}
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

// checkAll ends the streams that would be served differently now.
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

// endLocked ends a stream, or has it resolved again if it is not served yet. Of
// a definition that is gone, the instances have just been deleted, and clients
// are to hear of it: they cannot resume.
func (st *stream) endLocked(gone bool) {
	switch {
	case st.served.hash == "":
		st.changed = true
	case !gone:
		st.end()
	case st.last == nil:
		st.last = time.AfterFunc(lastEventsPeriod, st.end)
	}
}
