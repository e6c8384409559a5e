package client

import (
	"context"
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Guard decides which changes from its server an informer applies, for servers whose data may be lost or restored
// from a backup. Without a guard, an informer deletes all objects that the server does not have.
//
// Put, Delete and DropMissing are called once for each change, so that a guard can record its decisions.
//
// All methods except BeforeList, Version and Run are called with the informer's lock held, in the order of the events.
type Guard interface {
	// BeforeList is called before the complete state is requested, and again after it failed. lastBreak is when the
	// last connection ended, or zero.
	BeforeList(ctx context.Context, lastBreak time.Time) error
	// Version returns the resourceVersion that replaces the one from the server, or "" to keep it.
	Version(obj metav1.Object) string
	// Put reports whether a new or changed object is stored. served is its version on the server.
	Put(key Key, obj Object, served, version string) bool
	// Delete reports whether an object that the server deleted is removed.
	Delete(key Key, served, version string) bool
	// DropMissing reports whether an object that was not part of the complete state is removed.
	DropMissing(key Key) bool
	// ListComplete is called after the complete state has been applied.
	ListComplete()
	// Run is called with the context of Informer.Run.
	Run(ctx context.Context)
}

// Guarded is the part of an informer that its Guard may use. Get, All, Put, Replace and Remove must be called with
// the informer's lock held, which Pause takes.
type Guarded interface {
	guardedState

	Get(key Key) (Object, bool)
	All() iter.Seq2[Key, Object]
	// Put and Remove notify handlers.
	Put(key Key, obj Object)
	Remove(key Key)
	// Replace stores an object without notifying handlers.
	Replace(key Key, obj Object)
	// ListShard lists the objects of one shard as the informer would store them, and returns the version of the list.
	ListShard(ctx context.Context, shard string) (map[Key]Object, string, error)
}

type guardedState interface {
	Name() string
	Resource() schema.GroupResource
	Current() bool
	Pause(f func())
}

type acceptAll struct{}

func (acceptAll) BeforeList(context.Context, time.Time) error { return nil }
func (acceptAll) Version(metav1.Object) string                { return "" }
func (acceptAll) Put(Key, Object, string, string) bool        { return true }
func (acceptAll) Delete(Key, string, string) bool             { return true }
func (acceptAll) DropMissing(Key) bool                        { return true }
func (acceptAll) ListComplete()                               {}
func (acceptAll) Run(context.Context)                         {}
