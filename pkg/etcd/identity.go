package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Kind is the kind of server that the data belongs to.
type Kind string

const (
	// KindShard is the data of a shard.
	KindShard Kind = "shard"
	// KindCacheServer is the data of a cache server.
	KindCacheServer Kind = "cache-server"

	// These keys, below the prefix, have fewer segments than the keys of objects.
	identityKey = "shardplane-identity"
	dataIDKey   = "shardplane-data-id"
	startsKey   = "shardplane-starts"

	maxStarts = 64

	// identityTimeout limits one request for the identity.
	identityTimeout = 20 * time.Second
)

// ErrIdentity is returned if the data in etcd belongs to another server.
var ErrIdentity = errors.New("the data in etcd does not belong to this server")

// Identity identifies the server that the data in etcd belongs to.
type Identity struct {
	// Format is the version of key layout and encoding, which Claim sets.
	Format int  `json:"format"`
	Kind   Kind `json:"kind"`
	// Name is the name of the shard; a cache server has none.
	Name string `json:"name,omitempty"`
}

// String returns the identity for messages.
func (i Identity) String() string {
	if i.Name == "" {
		return string(i.Kind)
	}
	return fmt.Sprintf("%s %q", i.Kind, i.Name)
}

// IdentityKey returns the key of the identity of the data below prefix.
func IdentityKey(prefix string) string { return path.Join(prefix, identityKey) }

// Claim compares the identity of the data with want. It returns ErrIdentity if the data belongs to another server, and
// ErrDataDirFormat if it has another format version or none. Without data, it writes the identity. Several replicas may
// claim at the same time.
func (h *Handle) Claim(ctx context.Context, want Identity) error {
	for written := false; !written; {
		found, err := h.identity(ctx, want)
		if err != nil {
			return err
		}
		if found != nil {
			return h.compare(*found, want)
		}
		if written, err = h.writeIdentity(ctx, want); err != nil {
			return err
		}
	}
	return nil
}

func (i Identity) encoded() string {
	i.Format = formatVersion
	raw, _ := json.Marshal(i) //nolint:errchkjson // strings and a number
	return string(raw)
}

// identity returns the identity of the data, or nil if there is no data. Data without an identity has no format
// version. Both are read at one revision, because a replica may start at the same time.
func (h *Handle) identity(ctx context.Context, want Identity) (*Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key := IdentityKey(h.prefix)
	resp, err := h.client.KV.Txn(ctx).Then(
		clientv3.OpGet(key),
		clientv3.OpGet(h.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return nil, fmt.Errorf("reading the identity from %s: %w", h.where, err)
	}
	if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		kv := kvs[0]
		var found Identity
		if err := json.Unmarshal(kv.Value, &found); err != nil || found.Format == 0 || found.Kind == "" {
			return nil, fmt.Errorf("%w: the key %s of %s has the invalid value %.100q: restore it from a backup, or set it to %s if it is the data of this %s",
				ErrIdentity, key, h.where, kv.Value, want.encoded(), want)
		}
		return &found, nil
	}
	if kvs := resp.Responses[1].GetResponseRange().GetKvs(); len(kvs) > 0 {
		return nil, fmt.Errorf("%w: %s has keys such as %s but no key %s, so they were not written by shardplane v0.1.0 or later: use another --data-dir, etcd or --etcd-prefix",
			ErrDataDirFormat, h.where, kvs[0].Key, key)
	}
	return nil, nil //nolint:nilnil // no data
}

func (h *Handle) compare(found, want Identity) error {
	switch {
	case found.Format != formatVersion:
		return fmt.Errorf("%w: the key %s of %s has format %d, this version reads %d: run the version that wrote it, or use another etcd or --etcd-prefix",
			ErrDataDirFormat, IdentityKey(h.prefix), h.where, found.Format, formatVersion)
	case found.Kind != want.Kind || found.Name != want.Name:
		advice := "use another --data-dir, etcd or --etcd-prefix"
		if found.Kind == want.Kind {
			advice = fmt.Sprintf("start it with --name %s, or %s", found.Name, advice)
		}
		return fmt.Errorf("%w: the data below %s in %s belongs to the %s, but this is the %s: %s", ErrIdentity, h.prefix, h.where, found, want, advice)
	default:
		return nil
	}
}

// writeIdentity creates the key. It returns false if another replica has created it, and an error if another server
// has data that would contain this prefix.
func (h *Handle) writeIdentity(ctx context.Context, want Identity) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key := IdentityKey(h.prefix)
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}
	var otherwise []clientv3.Op
	for above := path.Dir(h.prefix); above != "/" && above != "."; above = path.Dir(above) {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(IdentityKey(above)), "=", 0))
		otherwise = append(otherwise, clientv3.OpGet(IdentityKey(above), clientv3.WithKeysOnly()))
	}
	resp, err := h.client.KV.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, want.encoded())).Else(otherwise...).Commit()
	if err != nil {
		return false, fmt.Errorf("writing the identity to %s: %w", h.where, err)
	}
	for _, response := range resp.Responses {
		for _, kv := range response.GetResponseRange().GetKvs() {
			return false, fmt.Errorf("%w: --etcd-prefix %s is below the prefix of another server, which has the key %s: choose another prefix", ErrIdentity, h.prefix, kv.Key)
		}
	}
	return resp.Succeeded, nil
}

// DataID returns the random ID of the data below the prefix. A copy has the same, data created again has not.
func (h *Handle) DataID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key, fresh := path.Join(h.prefix, dataIDKey), uuid.NewString()
	resp, err := h.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, fresh)).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return "", fmt.Errorf("reading the data ID from %s: %w", h.where, err)
	}
	if resp.Succeeded {
		return fresh, nil
	}
	return string(resp.Responses[0].GetResponseRange().Kvs[0].Value), nil // the key exists in this transaction
}

// Starts are the recorded starts of servers on the data, each with a random name. Data that was restored from an
// older backup has the starts of the backup, followed by new ones. Therefore the starts show whether the data that
// a client has read up to a revision is part of the current data's history.
type Starts struct {
	h *Handle

	mu    sync.Mutex
	known []noted
}

type noted struct {
	Name string `json:"name"`
	// Revision is the revision of the record. It is not stored for the latest start, which has the key's revision.
	Revision int64 `json:"revision,omitempty"`
}

// Start records the start of a server on the data.
func (h *Handle) Start(ctx context.Context) (*Starts, error) {
	s := &Starts{h: h}
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
		key := path.Join(h.prefix, startsKey)
		resp, err := h.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(content))).Commit()
		if err != nil {
			return nil, fmt.Errorf("recording the start in %s: %w", h.where, err)
		}
		if resp.Succeeded {
			known[len(known)-1].Revision = resp.Header.Revision
			s.known = known
			return s, nil
		}
	}
}

// read returns the recorded starts and the revision of their key. If they are invalid, clients read the data again.
func (s *Starts) read(ctx context.Context) (starts []noted, revision int64, err error) {
	resp, err := s.h.client.Client.Get(ctx, path.Join(s.h.prefix, startsKey))
	if err != nil {
		return nil, 0, fmt.Errorf("reading the starts from %s: %w", s.h.where, err)
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

// Had reports whether the history of the current data contains a revision that a client has read. name is the latest
// start at the time when the client began to read. It may be false if another replica has started in the meantime.
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
