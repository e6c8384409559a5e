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

// recountDelay is the delay between a write of an object and the count of all objects.
const recountDelay = time.Second

// watched maps written keys to the cached resources that depend on them.
type watched struct {
	mu sync.Mutex
	// of contains the cached resources by watched key: a key prefix of objects, or the key of a secret.
	of map[string]map[client.Key]bool
	by map[client.Key]watches
}

type watches struct {
	objects, secret string
	// verified is set if the secret has not changed since it was verified.
	verified bool
	// secretChanges counts changes of the secret.
	secretChanges int
	// counted is the state at the last count, if the objects have not changed since; objectChanges counts their changes.
	counted       counted
	objectChanges int
}

// Served describes a resource that a logical cluster serves.
type Served struct {
	Kind       string
	Namespaced bool
	// API is the identity of the export from which it is bound, if any.
	API string
	// Converted is set if a webhook converts stored objects to the requested version.
	Converted bool
	// Prefix is the key prefix of its objects.
	Prefix string
}

// counted is the state on which a count depends.
type counted struct {
	version string // of the cached resource
	served  Served
	at      time.Time
}

func newWatched() *watched {
	return &watched{of: map[string]map[client.Key]bool{}, by: map[client.Key]watches{}}
}

// secret records the secret of a cached resource. It must be called before the secret is read.
func (w *watched) secret(key, secret client.Key) {
	on := strings.Join([]string{"", "core", corev1.ResourceSecrets.String(), secret.Cluster.String(), secret.Namespace, secret.Name}, "/")
	w.change(key, func(its *watches) { its.secret = on })
}

// objects records the key prefix of the objects, which may be empty. It must be called before they are counted.
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

// verified reports whether the secret has not changed since it was verified.
func (w *watched) verified(key client.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[key].verified
}

// verify returns a function that records that the secret, which is read after this call, is valid.
func (w *watched) verify(key client.Key) (right func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	secretChanges := w.by[key].secretChanges
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if now, ok := w.by[key]; ok && now.secretChanges == secretChanges {
			now.verified = true
			w.by[key] = now
		}
	}
}

// count returns a function that records the result of a count that begins after this call.
func (w *watched) count(key client.Key) (done func(c counted)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	objectChanges := w.by[key].objectChanges
	return func(c counted) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if now, ok := w.by[key]; ok && now.objectChanges == objectChanges {
			now.counted = c
			w.by[key] = now
		}
	}
}

// counted returns the state at the last count; the zero value if the objects have changed since.
func (w *watched) counted(key client.Key) counted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[key].counted
}

// notify returns the cached resources that depend on a written key, and whether it is a secret. An empty key stands for any object.
func (w *watched) notify(key string) (all []client.Key, secret bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key == "" {
		for key, its := range w.by {
			its.verified, its.secretChanges = false, its.secretChanges+1
			its.counted, its.objectChanges = counted{}, its.objectChanges+1
			w.by[key] = its
			all = append(all, key)
		}
		return all, true
	}
	for key := range w.of[key] {
		its := w.by[key]
		its.verified, its.secretChanges = false, its.secretChanges+1
		w.by[key] = its
		all, secret = append(all, key), true
	}
	for key := range w.of[key[:strings.LastIndexByte(key, '/')+1]] {
		its := w.by[key]
		its.counted, its.objectChanges = counted{}, its.objectChanges+1
		w.by[key] = its
		all = append(all, key)
	}
	return all, secret
}

// verify sets the identity from a secret, which may be nil, and returns a problem, if any. An existing identity does not change.
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
		return fmt.Sprintf("The secret %s has no value under %q: store the identity there", where, apis.IdentityKey)
	case object.Status.IdentityHash == "":
		object.Status.IdentityHash = apis.IdentityHash(key)
	case object.Status.IdentityHash != apis.IdentityHash(key):
		return fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes and with which the objects stay replicated: restore the previous identity, or create another object", where)
	}
	return ""
}
