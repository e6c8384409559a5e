package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// startsKey, below the prefix, has the starts of servers on the data. It has too few segments
	// to be the key of an object.
	startsKey = "shardplane-starts"
	// maxStarts is how many are kept.
	maxStarts = 64
)

// Starts are the starts of servers on some data, each with a random name. Data that was set back to
// a copy, however that was done, has the starts that the copy has, and then others than before: so
// they tell whether what somebody has seen up to a revision is what the data was.
type Starts struct {
	client *clientv3.Client
	key    string
	where  string

	mu    sync.Mutex
	known []noted
}

// noted is one of them.
type noted struct {
	Name string `json:"name"`
	// Revision is that of etcd when it was noted. What is stored has none of the last one, which
	// is that of the key.
	Revision int64 `json:"revision,omitempty"`
}

// Start notes that a server starts on the data.
func (h *Handle) Start(ctx context.Context) (*Starts, error) {
	s := &Starts{client: h.client.Client, key: path.Join(h.prefix, startsKey), where: h.where}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	for {
		known, revision, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		known = append(known, noted{Name: uuid.NewString()})
		known = known[max(0, len(known)-maxStarts):]
		content, err := json.Marshal(known)
		if err != nil {
			return nil, fmt.Errorf("encoding the starts: %w", err)
		}
		answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.key), "=", revision)).Then(clientv3.OpPut(s.key, string(content))).Commit()
		if err != nil {
			return nil, fmt.Errorf("noting the start in %s: %w", s.where, err)
		}
		if answer.Succeeded {
			known[len(known)-1].Revision = answer.Header.Revision
			s.known = known
			return s, nil
		}
	}
}

// read returns the starts that are noted, and the revision of that. What cannot be decoded is none:
// whoever has seen something then reads it anew.
func (s *Starts) read(ctx context.Context) (starts []noted, revision int64, err error) {
	answer, err := s.client.Get(ctx, s.key)
	if err != nil {
		return nil, 0, fmt.Errorf("reading from %s which servers have started: %w", s.where, err)
	}
	for _, kv := range answer.Kvs {
		if json.Unmarshal(kv.Value, &starts) != nil {
			starts = nil
		}
		if revision = kv.ModRevision; len(starts) > 0 {
			starts[len(starts)-1].Revision = revision
		}
	}
	return starts, revision, nil
}

// Latest returns the name of the latest start that is known here.
func (s *Starts) Latest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[len(s.known)-1].Name
}

// Had reports whether the data was, up to a revision, what somebody has seen who began to read when the
// start of that name was the latest: no other one was noted in between. It may be false where another
// replica has started meanwhile.
func (s *Starts) Had(ctx context.Context, name string, revision int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.indexLocked(name)
	if at < 0 { // it may be of another replica
		ctx, cancel := context.WithTimeout(ctx, identityTimeout)
		defer cancel()
		starts, _, err := s.read(ctx)
		if err != nil {
			return false, err
		}
		if len(starts) > 0 {
			s.known = starts
		}
		at = s.indexLocked(name)
	}
	return at >= 0 && (at == len(s.known)-1 || s.known[at+1].Revision > revision), nil
}

func (s *Starts) indexLocked(name string) int {
	return slices.IndexFunc(s.known, func(known noted) bool { return known.Name == name })
}
