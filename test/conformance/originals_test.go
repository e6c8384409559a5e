package conformance

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// original is a Go module with the definitions of a project.
type original struct {
	project     string
	module      string // with its version
	sum         string // of the module, as go.sum has it
	manifests   string // a pattern of files in the module
	definitions int
}

var originals = []original{
	{
		"Gateway API, experimental channel", "sigs.k8s.io/gateway-api@v1.4.0",
		"h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ=",
		"config/crd/experimental/gateway.*.yaml", 12,
	},
	{
		"cert-manager", "github.com/cert-manager/cert-manager@v1.18.2",
		"h1:H2P75ycGcTMauV3gvpkDqLdS3RSXonWF2S49QGA1PZE=",
		"deploy/crds/crd-*.yaml", 6,
	},
	{
		"Crossplane", "github.com/crossplane/crossplane@v1.20.0",
		"h1:Wr3+/CilaMbRQ7u4e+m4XBmoARahBpENIYClGzIXpS8=",
		"cluster/crds/*.yaml", 16,
	},
}

// TestOriginalSets applies the unchanged definitions of popular projects, and lists each of
// their resources immediately. They are read from the Go modules of the projects. Nothing in these
// is built, and go.mod does not require them.
func TestOriginalSets(t *testing.T) {
	admin := sharedShard.Get(t).Shard(0)
	t.Run("projects", func(t *testing.T) {
		for _, o := range originals {
			t.Run(o.project, func(t *testing.T) {
				t.Parallel()
				dir := download(t, o)
				files, err := filepath.Glob(filepath.Join(dir, o.manifests))
				require.NoError(t, err)
				for _, cluster := range []string{"original-a", "original-b"} {
					u, applied := newUser(t, admin, cluster, ""), 0
					for _, file := range files {
						for _, manifest := range readManifests(t, file) {
							if manifest.GetKind() == "CustomResourceDefinition" {
								manifest.SetLabels(nil) // some labels of charts are templates
								u.applyDefinition(manifest)
								applied++
							}
						}
					}
					require.Equal(t, o.definitions, applied)
				}
			})
		}
	})
}

// download downloads a module, and returns its directory in the module cache.
func download(t *testing.T, o original) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", o.module)
	command.Dir = t.TempDir() // outside of any module
	command.Env = append(command.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := command.Output()
	require.NoError(t, err, "go mod download %s: make the Go module proxy reachable (GOPROXY): %s", o.module, out)
	var module struct{ Dir, Sum string }
	require.NoError(t, json.Unmarshal(out, &module))
	require.Equal(t, o.sum, module.Sum, "unexpected checksum of %s", o.module)
	return module.Dir
}
