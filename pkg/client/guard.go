package client

import (
	"context"
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Guard decides which of the changes that its server sends an informer applies. It is for servers
// whose data may be lost or restored from a backup: without a guard, an informer believes its
// server, and deletes what the server does not have. See Factory.WithGuard.
//
// BeforeList and Run are called on goroutines of their own. The other methods, except for
// Version, are called with the informer's lock held, in the order of the events.
type Guard interface {
	// BeforeList is called before the informer requests the complete state. If it fails, the
	// informer retries. lastBreak is the time at which the last connection ended, or zero.
	BeforeList(ctx context.Context, lastBreak time.Time) error
	// Version returns the version of an object from the server, which the informer sets as
	// resourceVersion of the object. If it is empty, the object keeps the version of the server.
	Version(obj metav1.Object) string
	// Put reports whether a new or changed object is stored. served is its version on the server.
	Put(key Key, obj Object, served, version string) bool
	// Delete reports whether an object is removed that the server has deleted.
	Delete(key Key, served, version string) bool
	// Missing reports whether an object is removed that was not part of the complete state.
	Missing(key Key) bool
	// ListComplete is called after the complete state has been applied.
	ListComplete()
	// Run runs for as long as the informer does.
	Run(ctx context.Context)
}

// Guarded is an informer as its Guard sees it. The methods that read and change objects, Get, All,
// Put, Replace and Remove, must be called with the informer's lock held, which Pause takes.
type Guarded interface {
	// Name, Resource, Current and Pause are those of the informer.
	Name() string
	Resource() schema.GroupResource
	Current() bool
	Pause(f func())

	Get(key Key) (Object, bool)
	All() iter.Seq2[Key, Object]
	// Put stores an object, and Remove removes one. Both notify handlers.
	Put(key Key, obj Object)
	Remove(key Key)
	// Replace stores an object without notifying handlers.
	Replace(key Key, obj Object)
	// ListShard lists the objects of one shard, as the options of the informer select and
	// transform them, and returns the version of the list.
	ListShard(ctx context.Context, shard string) (map[Key]Object, string, error)
}

// trust is the default guard, which believes the server.
type trust struct{}

func (trust) BeforeList(context.Context, time.Time) error { return nil }
func (trust) Version(metav1.Object) string                { return "" }
func (trust) Put(Key, Object, string, string) bool        { return true }
func (trust) Delete(Key, string, string) bool             { return true }
func (trust) Missing(Key) bool                            { return true }
func (trust) ListComplete()                               {}
func (trust) Run(context.Context)                         {}
