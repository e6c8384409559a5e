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

	// identityKey is the key of the identity, below the prefix. It has fewer segments than the keys of objects.
	identityKey = "shardplane-identity"

	// identityTimeout limits one request for the identity.
	identityTimeout = 20 * time.Second
)

// ErrIdentity is returned if the data in etcd belongs to another server.
var ErrIdentity = errors.New("the data in etcd does not belong to this server")

// Identity identifies the server that the data in etcd belongs to.
type Identity struct {
	// Format is the version of key layout and encoding, which Claim sets.
	Format int `json:"format"`
	// Kind is the kind of server.
	Kind Kind `json:"kind"`
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

// Claim compares the identity of the data below the prefix of h with want. It returns ErrIdentity
// if the data belongs to another server, and ErrDataDirFormat if the data has another format
// version or none. The first server to claim an empty prefix writes its identity there in a
// transaction. Several replicas may claim at the same time.
func (h *Handle) Claim(ctx context.Context, want Identity) error {
	want.Format = formatVersion
	c := claim{kv: h.client.KV, where: h.where, prefix: h.prefix, want: want}
	found, err := c.read(ctx)
	if err != nil {
		return err
	}
	if found != nil {
		return c.compare(*found)
	}
	return c.write(ctx)
}

// claim is an attempt to read or write the identity of the data below a prefix.
type claim struct {
	kv            clientv3.KV
	where, prefix string
	want          Identity
}

func (c claim) encoded() string {
	raw, _ := json.Marshal(c.want) //nolint:errchkjson // strings and a number
	return string(raw)
}

// read returns the identity of the data, or nil if there is no data. Data without an identity has
// no format version. Both are read at one revision, because a replica may start at the same time.
func (c claim) read(ctx context.Context) (*Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key := IdentityKey(c.prefix)
	resp, err := c.kv.Txn(ctx).Then(
		clientv3.OpGet(key),
		clientv3.OpGet(c.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return nil, fmt.Errorf("reading the identity from %s: %w", c.where, err)
	}
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		return c.decode(kv.Value)
	}
	for _, kv := range resp.Responses[1].GetResponseRange().GetKvs() {
		return nil, fmt.Errorf("%w: %s has keys such as %s but no key %s, so they were not written by shardplane v0.1.0 or later: use another --data-dir, etcd or --etcd-prefix",
			ErrDataDirFormat, c.where, kv.Key, key)
	}
	return nil, nil //nolint:nilnil // no data
}

func (c claim) decode(raw []byte) (*Identity, error) {
	var found Identity
	if err := json.Unmarshal(raw, &found); err != nil || found.Format == 0 || found.Kind == "" {
		return nil, fmt.Errorf("%w: the key %s of %s has the invalid value %.100q: restore it from a backup, or set it to %s if it is the data of this %s",
			ErrIdentity, IdentityKey(c.prefix), c.where, raw, c.encoded(), c.want)
	}
	return &found, nil
}

func (c claim) compare(found Identity) error {
	switch {
	case found.Format != formatVersion:
		return fmt.Errorf("%w: the key %s of %s has format %d, this version reads %d: run the version that wrote it, or use another etcd or --etcd-prefix",
			ErrDataDirFormat, IdentityKey(c.prefix), c.where, found.Format, formatVersion)
	case found.Kind != c.want.Kind || found.Name != c.want.Name:
		advice := "use another --data-dir, etcd or --etcd-prefix"
		if found.Kind == c.want.Kind {
			advice = fmt.Sprintf("start it with --name %s, or %s", found.Name, advice)
		}
		return fmt.Errorf("%w: the data below %s in %s belongs to the %s, but this is the %s: %s", ErrIdentity, c.prefix, c.where, found, c.want, advice)
	default:
		return nil
	}
}

// write creates the key, unless another server has created it, or has data that would contain this prefix.
func (c claim) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key := IdentityKey(c.prefix)
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}
	otherwise := []clientv3.Op{clientv3.OpGet(key)}
	for above := path.Dir(c.prefix); above != "/" && above != "."; above = path.Dir(above) {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(IdentityKey(above)), "=", 0))
		otherwise = append(otherwise, clientv3.OpGet(IdentityKey(above), clientv3.WithKeysOnly()))
	}
	resp, err := c.kv.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, c.encoded())).Else(otherwise...).Commit()
	if err != nil {
		return fmt.Errorf("writing the identity to %s: %w", c.where, err)
	}
	if resp.Succeeded {
		return nil
	}
	for _, response := range resp.Responses[1:] {
		for _, kv := range response.GetResponseRange().GetKvs() {
			return fmt.Errorf("%w: --etcd-prefix %s is below the prefix of another server, which has the key %s: choose another prefix", ErrIdentity, c.prefix, kv.Key)
		}
	}
	kvs := resp.Responses[0].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return fmt.Errorf("the key %s was deleted from %s concurrently: restart the server", key, c.where)
	}
	found, err := c.decode(kvs[0].Value)
	if err != nil {
		return err
	}
	return c.compare(*found)
}

// dataIDKey is the key of the data ID, below the prefix. It has fewer segments than the keys of objects.
const dataIDKey = "shardplane-data-id"

// DataID returns the random ID of the data below the prefix, which the first server creates. Data that was lost and
// created again has another ID, a copy has the same.
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
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		return string(kv.Value), nil
	}
	return "", fmt.Errorf("the key %s was deleted from %s concurrently: restart the server", key, h.where)
}

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
