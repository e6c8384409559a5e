package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type source struct {
	name    string
	items   []string
	changes uint64
	saveErr error
}

func (s *source) Name() string                   { return s.name }
func (s *source) Resource() schema.GroupResource { return schema.GroupResource{Resource: s.name} }
func (s *source) Changes() uint64                { return s.changes }

func (s *source) Save() (saved []json.RawMessage, err error) {
	for _, text := range s.items {
		saved = append(saved, json.RawMessage(text))
	}
	return saved, s.saveErr
}

func (s *source) Restore(saved []json.RawMessage) error {
	s.items = []string{}
	for _, text := range saved {
		s.items = append(s.items, string(text))
	}
	return nil
}

func TestSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "replicas", "snapshot")
	a, b := &source{name: "a", items: []string{`{"x":1}`, `"y"`}, changes: 2}, &source{name: "b", saveErr: errors.New("unreachable")}
	of := func(server string, age time.Duration) (found map[string][]string) {
		to := []Source{&source{name: "a"}, &source{name: "b"}, &source{name: "new"}}
		NewReplicaSnapshot(Config{Store: File(file), Server: server, MaxAge: age, Sources: to}).Restore(t.Context())
		found = map[string][]string{}
		for _, s := range to {
			if s, _ := s.(*source); s.items != nil {
				found[s.name] = s.items
			}
		}
		return found
	}
	require.Empty(t, of("one", 0), "nothing must be restored without a file")
	s := NewReplicaSnapshot(Config{Store: File(file), Server: "one", Sources: []Source{a, b}})
	require.Error(t, s.Save(t.Context()))
	require.NoFileExists(t, file, "an incomplete snapshot must not be saved")
	b.saveErr = nil
	require.NoError(t, s.Save(t.Context()))
	want := map[string][]string{"a": {`{"x":1}`, `"y"`}, "b": {}}
	require.Equal(t, want, of("one", 0))
	require.Equal(t, want, of("one", time.Hour))
	require.Empty(t, of("two", 0))
	require.Empty(t, of("one", time.Nanosecond))

	// Unchanged objects are not written again, changed ones are, and errors do not change the file.
	before, err := os.Stat(file)
	require.NoError(t, err)
	require.NoError(t, s.Save(t.Context()))
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	a.items, a.changes = []string{`3`}, 3
	b.saveErr = errors.New("unreachable")
	require.Error(t, s.Save(t.Context()))
	require.Equal(t, want, of("one", 0))
	b.saveErr = nil
	require.NoError(t, s.Save(t.Context()))
	require.Equal(t, map[string][]string{"a": {`3`}, "b": {}}, of("one", 0))

	content, err := os.ReadFile(file)
	require.NoError(t, err)
	for name, damaged := range map[string]string{
		"other content": strings.Replace(string(content), "[3]", "[4]", 1), "cut": string(content[:len(content)-1]),
		"header only": strings.SplitN(string(content), "\n", 2)[0], "empty": "", "later format": strings.Replace(string(content), `"format":2`, `"format":3`, 1),
	} {
		require.NoError(t, os.WriteFile(file, []byte(damaged), 0o600))
		require.Empty(t, of("one", 0), name)
	}
	for data, used := range map[string]bool{"": false, "mine": true, "others": false} {
		require.NoError(t, NewReplicaSnapshot(Config{Store: File(file), Server: "one", Data: data, Sources: []Source{&source{name: "a"}}}).Save(t.Context()))
		here := &source{name: "a"}
		NewReplicaSnapshot(Config{Store: File(file), Server: "one", Data: "mine", Sources: []Source{here}}).Restore(t.Context())
		require.Equal(t, used, here.items != nil, data)
	}
}

// TestSealed: each resource is stored as returned by Seal, and not used if Open fails.
func TestSealed(t *testing.T) {
	file := File(filepath.Join(t.TempDir(), "snapshot"))
	xor := func(content []byte) []byte {
		sealed := slices.Clone(content)
		for i := range sealed {
			sealed[i] ^= 0x55
		}
		return sealed
	}
	config := Config{
		Store: file,
		Seal: func(_ context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
			return append([]byte(resource.Resource), xor(content)...), nil
		},
		Open: func(_ context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
			sealed, ok := bytes.CutPrefix(content, []byte(resource.Resource))
			if !ok {
				return nil, errors.New("not sealed as this resource")
			}
			return xor(sealed), nil
		},
	}
	restored := func(config Config) [][]string {
		a, b := &source{name: "a"}, &source{name: "b"}
		config.Sources = []Source{a, b}
		NewReplicaSnapshot(config).Restore(t.Context())
		return [][]string{a.items, b.items}
	}
	saved := config
	saved.Sources = []Source{&source{name: "a", items: []string{`"plain"`}}, &source{name: "b", items: []string{`1`}}}
	require.NoError(t, NewReplicaSnapshot(saved).Save(t.Context()))
	content, err := os.ReadFile(string(file))
	require.NoError(t, err)
	require.NotContains(t, string(content), "plain")
	require.Equal(t, [][]string{{`"plain"`}, {`1`}}, restored(config))
	require.Equal(t, [][]string{nil, nil}, restored(Config{Store: file}), "sealed content must not be restored without Open")

	saved.Seal = nil
	require.NoError(t, NewReplicaSnapshot(saved).Save(t.Context()))
	require.Equal(t, [][]string{nil, nil}, restored(config), "plain content must not be restored with Open")
	require.Equal(t, [][]string{{`"plain"`}, {`1`}}, restored(Config{Store: file}))
}
