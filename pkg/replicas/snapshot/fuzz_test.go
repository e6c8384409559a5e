package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type memory struct{ content []byte }

func (m *memory) Load(context.Context) ([]byte, error) { return m.content, nil }

func (m *memory) Replace(_ context.Context, value []byte) error {
	m.content = value
	return nil
}

func (*memory) String() string { return "memory" }

// FuzzRestore: for any content of the store, only a complete snapshot of this server is restored.
func FuzzRestore(f *testing.F) {
	whole := &memory{}
	require.NoError(f, NewReplicaSnapshot(Config{Store: whole, Server: "one", Sources: []Source{&source{name: "a", items: []string{`{"x":1}`}}, &source{name: "b"}}}).Save(f.Context()))
	f.Add(whole.content, false)
	_, body, _ := bytes.Cut(whole.content, []byte("\n"))
	for _, seed := range []string{string(body), `{"a":null}`, `{"a":[null]}`, `{"a":"x"}`, `{"a":[1],"a":[2],"b":{}}`, "[]", "{", ""} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, content []byte, sign bool) {
		if sign {
			sum := sha256.Sum256(content)
			content = append(fmt.Appendf(nil, `{"format":2,"server":"one","time":%q,"sha256":%q}`+"\n", time.Now().Format(time.RFC3339), hex.EncodeToString(sum[:])), content...)
		}
		a := &source{name: "a"}
		NewReplicaSnapshot(Config{Store: &memory{content}, Server: "one", MaxAge: time.Hour, Sources: []Source{a}}).Restore(t.Context())
		first, body, _ := bytes.Cut(content, []byte("\n"))
		var snapshot map[string]json.RawMessage
		var objects []json.RawMessage
		if err := json.Unmarshal(body, &snapshot); err != nil || json.Unmarshal(snapshot["a"], &objects) != nil {
			require.Nil(t, a.items, "invalid content must not be restored")
			return
		}
		if a.items == nil {
			require.False(t, sign, "a complete snapshot must be restored")
			return
		}
		sum := sha256.Sum256(body)
		require.Contains(t, strings.ToLower(string(first)), hex.EncodeToString(sum[:]))
		require.Len(t, a.items, len(objects))
		for i, text := range objects {
			require.Equal(t, string(text), a.items[i])
		}
	})
}
