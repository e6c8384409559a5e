package cachedresource

import (
	"fmt"
	"strings"
	"sync"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

// recount is how long after a write of an object all are counted, whatever else is written
// meanwhile.
const recount = time.Second

// watched are the keys by which the store tells of objects, and who has to look at what then.
type watched struct {
	mu sync.Mutex
	// of are the cached resources by what they watch: prefixes of the keys of objects, and keys
	// of secrets.
	of map[string]map[client.Key]bool
	by map[client.Key]watches
}

// watches is what one cached resource watches.
type watches struct {
	objects, secret string
	// verified is set while nothing has been heard of the secret since it was found to be right.
	verified bool
	// heard counts what was heard of it.
	heard int
	// counted is what was true when the objects were counted, here and on the cache server, if nothing has
	// been heard of them since; written counts what was heard of them.
	counted counted
	written int
}

// Served is what a logical cluster serves under the name of a resource.
type Served struct {
	Kind       string
	Namespaced bool
	// API is the identity of the export that it is bound from, if it is.
	API string
	// Converted is set if a webhook converts what is stored into the version that was asked for.
	Converted bool
	// Prefix is that of the keys of its objects.
	Prefix string
}

// counted is what a count of objects goes by.
type counted struct {
	// version is that of the cached resource, and served what its logical cluster serves.
	version string
	served  Served
	at      time.Time
}

func newWatched() *watched {
	return &watched{of: map[string]map[client.Key]bool{}, by: map[client.Key]watches{}}
}

// secret notes where the secret of a cached resource is, before it is read.
func (w *watched) secret(key, secret client.Key) {
	on := strings.Join([]string{"", "core", corev1.ResourceSecrets.String(), secret.Cluster.String(), secret.Namespace, secret.Name}, "/")
	w.change(key, func(its *watches) { its.secret = on })
}

// objects notes the prefix of the keys of the objects of a cached resource, before they are
// counted; it may be empty.
func (w *watched) objects(key client.Key, prefix string) {
	w.change(key, func(its *watches) { its.objects = prefix })
}

func (w *watched) change(key client.Key, change func(its *watches)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.by[key]
	next := before
	if change(&next); next == before {
		return
	}
	w.removeLocked(key, before)
	w.by[key] = next
	for _, on := range []string{next.objects, next.secret} {
		if on == "" {
			continue
		}
		if w.of[on] == nil {
			w.of[on] = map[client.Key]bool{}
		}
		w.of[on][key] = true
	}
}

func (w *watched) removeLocked(key client.Key, before watches) {
	for _, on := range []string{before.objects, before.secret} {
		if delete(w.of[on], key); len(w.of[on]) == 0 {
			delete(w.of, on)
		}
	}
}

func (w *watched) forget(key client.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(key, w.by[key])
	delete(w.by, key)
}

// verified reports whether the secret of a cached resource is as it was when it was right.
func (w *watched) verified(key client.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[key].verified
}

// verify returns a function that says that the secret of a cached resource, which is read after
// this, is right.
func (w *watched) verify(key client.Key) (right func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	heard := w.by[key].heard
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if now, ok := w.by[key]; ok && now.heard == heard {
			now.verified = true
			w.by[key] = now
		}
	}
}

// count returns what is to be called when the objects have been counted.
func (w *watched) count(key client.Key) (done func(c counted)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := w.by[key].written
	return func(c counted) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if now, ok := w.by[key]; ok && now.written == written {
			now.counted = c
			w.by[key] = now
		}
	}
}

// counted returns what was true when the objects were counted last, and nothing if something was heard of them since.
func (w *watched) counted(key client.Key) counted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[key].counted
}

// tell returns the cached resources that have to look at an object, and whether that is a secret.
// An empty key may be any object.
func (w *watched) tell(key string) (all []client.Key, secret bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key == "" {
		for key, its := range w.by {
			its.verified, its.heard = false, its.heard+1
			its.counted, its.written = counted{}, its.written+1
			w.by[key] = its
			all = append(all, key)
		}
		return all, true
	}
	for key := range w.of[key] {
		its := w.by[key]
		its.verified, its.heard = false, its.heard+1
		w.by[key] = its
		all, secret = append(all, key), true
	}
	for key := range w.of[key[:strings.LastIndexByte(key, '/')+1]] {
		its := w.by[key]
		its.counted, its.written = counted{}, its.written+1
		w.by[key] = its
		all = append(all, key)
	}
	return all, secret
}

// verify gives a cached resource the identity in a secret, which may be nil, and returns what is
// wrong with it. An identity, once there is one, stays.
func verify(object *cachev1alpha1.CachedResource, ref corev1.SecretReference, secret *corev1.Secret) (problem string) {
	where := ref.Namespace + "/" + ref.Name
	if secret == nil {
		return fmt.Sprintf("The secret %s does not exist: create it with the identity under %q", where, apis.IdentityKey)
	}
	if object.Spec.Identity == nil || object.Spec.Identity.SecretRef == nil {
		object.Spec.Identity = &cachev1alpha1.Identity{SecretRef: &ref}
	}
	key := secret.Data[apis.IdentityKey]
	switch {
	case len(key) == 0:
		return fmt.Sprintf("The secret %s has nothing under %q: put the identity there", where, apis.IdentityKey)
	case object.Status.IdentityHash == "":
		object.Status.IdentityHash = apis.IdentityHash(key)
	case object.Status.IdentityHash != apis.IdentityHash(key):
		return fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes and under which the objects stay replicated: put the former one back, or make another object", where)
	}
	return ""
}
