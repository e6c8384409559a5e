package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

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
