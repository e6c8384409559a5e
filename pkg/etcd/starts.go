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
	// startsKey is the key of the starts, below the prefix. It has fewer segments than the keys of objects.
	startsKey = "shardplane-starts"
	// maxStarts is the maximum number of recorded starts.
	maxStarts = 64
)

// Starts are the recorded starts of servers on the data, each with a random name. Data that was restored from an
// older backup has the starts of the backup, followed by new ones. Therefore the starts show whether the data that
// a client has read up to a revision is part of the current data's history.
type Starts struct {
	client *clientv3.Client
	key    string
	where  string

	mu    sync.Mutex
	known []noted
}

// noted is a recorded start.
type noted struct {
	Name string `json:"name"`
	// Revision is the revision of the record. It is not stored for the latest start, which has the key's revision.
	Revision int64 `json:"revision,omitempty"`
}

// Start records the start of a server on the data.
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
		resp, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.key), "=", revision)).Then(clientv3.OpPut(s.key, string(content))).Commit()
		if err != nil {
			return nil, fmt.Errorf("recording the start in %s: %w", s.where, err)
		}
		if resp.Succeeded {
			known[len(known)-1].Revision = resp.Header.Revision
			s.known = known
			return s, nil
		}
	}
}

// read returns the recorded starts and the revision of their key. If they cannot be decoded, it returns none, so
// that clients read the data again.
func (s *Starts) read(ctx context.Context) (starts []noted, revision int64, err error) {
	resp, err := s.client.Get(ctx, s.key)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the starts from %s: %w", s.where, err)
	}
	for _, kv := range resp.Kvs {
		if json.Unmarshal(kv.Value, &starts) != nil {
			starts = nil
		}
		if revision = kv.ModRevision; len(starts) > 0 {
			starts[len(starts)-1].Revision = revision
		}
	}
	return starts, revision, nil
}

// Latest returns the name of the latest known start.
func (s *Starts) Latest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[len(s.known)-1].Name
}

// Had reports whether the data up to a revision is part of the current data's history for a client that began
// to read when the named start was the latest: no other start was recorded in between. It may be false if another
// replica has started in the meantime.
func (s *Starts) Had(ctx context.Context, name string, revision int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.indexLocked(name)
	if at < 0 { // it may be the start of another replica
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
