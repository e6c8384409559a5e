package customresource

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// farewell is how long a watch outlives its definition.
const farewell = time.Second

// streams knows the watches of each custom resource, to end them when its
// definition changes: a stream is served with one schema from start to end.
// Clients resume, and see the new schema.
type streams struct {
	mu  sync.Mutex
	all map[streamKey]map[*stream]struct{}
}

// streamKey names a custom resource of a logical cluster.
type streamKey struct {
	cluster  logicalcluster.Name
	resource schema.GroupResource
}

// stream is one watch.
type stream struct {
	of  streamKey
	end context.CancelFunc
	// last ends the stream of a definition that is gone.
	last *time.Timer
	// changed is set when the definition changes before the schema is settled,
	// which served tells.
	changed, served bool
}

func newStreams() *streams {
	return &streams{all: map[streamKey]map[*stream]struct{}{}}
}

func (s *streams) add(cluster logicalcluster.Name, resource schema.GroupResource, end context.CancelFunc) *stream {
	st := &stream{of: streamKey{cluster, resource}, end: end}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.all[st.of]
	if of == nil {
		of = map[*stream]struct{}{}
		s.all[st.of] = of
	}
	of[st] = struct{}{}
	return st
}

func (s *streams) remove(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.last != nil {
		st.last.Stop()
	}
	of := s.all[st.of]
	delete(of, st)
	if len(of) == 0 {
		delete(s.all, st.of)
	}
}

// changed ends the streams of a definition that is served differently now.
func (s *streams) changed(c definitions.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.all[streamKey{c.Cluster, c.Resource}] {
		switch {
		case !st.served:
			st.changed = true
		case c.Gone && st.last == nil:
			// Its instances have just been deleted, and clients are to hear of it:
			// they cannot resume.
			st.last = time.AfterFunc(farewell, st.end)
		case !c.Gone:
			st.end()
		}
	}
}

// settle says that a stream is about to be served with the schema that was
// resolved last. It answers false if the definition has changed in the
// meantime: then it is to be resolved again.
func (s *streams) settle(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.changed {
		st.changed = false
		return false
	}
	st.served = true
	return true
}
