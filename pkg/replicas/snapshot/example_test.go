package snapshot_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
)

type settings struct{ held []json.RawMessage }

func (*settings) Name() string                           { return "settings" }
func (*settings) Resource() schema.GroupResource         { return schema.GroupResource{Resource: "configmaps"} }
func (s *settings) Save() ([]json.RawMessage, error)     { return s.held, nil }
func (s *settings) Restore(held []json.RawMessage) error { s.held = held; return nil }
func (*settings) Changes() uint64                        { return 1 }

func directory() string {
	dir, err := os.MkdirTemp("", "snapshot")
	if err != nil {
		panic(err)
	}
	return dir
}

// A process starts with the objects saved by the previous one.
func ExampleSnapshot() {
	dir := directory()
	defer func() { _ = os.RemoveAll(dir) }()
	var store snapshot.Store = snapshot.File(filepath.Join(dir, "replicas"))
	process := func(has *settings) *snapshot.Snapshot {
		return snapshot.NewReplicaSnapshot(snapshot.Config{Store: store, Server: "blue", Sources: []snapshot.Source{has}})
	}
	first := process(&settings{held: []json.RawMessage{[]byte(`{"a":1}`)}})
	fmt.Println(first.Save(context.Background()))

	later := &settings{}
	process(later).Restore(context.Background())
	fmt.Printf("%s\n", later.held)
	// Output:
	// <nil>
	// [{"a":1}]
}

// Sources that are added and removed have their own files, which Forget deletes.
func ExampleDirectory() {
	dir := directory()
	defer func() { _ = os.RemoveAll(dir) }()
	kept := &snapshot.Directory{Path: dir, Config: snapshot.Config{Server: "blue", MaxAge: time.Hour}}
	first := &settings{held: []json.RawMessage{[]byte(`{"a":1}`)}}
	fmt.Println(kept.Of(first).Save(context.Background()))

	later := &settings{}
	kept.Of(later).Restore(context.Background())
	fmt.Printf("%s\n", later.held)

	fmt.Println(kept.Prune(), kept.Forget(later))
	none := &settings{}
	kept.Of(none).Restore(context.Background())
	fmt.Println(len(none.held))
	// Output:
	// <nil>
	// [{"a":1}]
	// <nil> <nil>
	// 0
}
