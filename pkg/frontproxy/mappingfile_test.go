package frontproxy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// certificatesOf are the fields that each entry must have.
const certificatesOf = "backend: https://127.0.0.1:1, backend_server_ca: ca, proxy_client_cert: crt, proxy_client_key: key"

func readText(t *testing.T, text string) ([]*mappingEntry, *mappingEntry, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mappings.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return readMappings(file)
}

// TestMappingFileOrder holds that the entry is found that is closest to a path.
func TestMappingFileOrder(t *testing.T) {
	text := "# servers\n---\n"
	for _, path := range []string{"/", "/services", "/services/{x}/clusters/{cluster}", "/services/a", "/services/a/{y}", "/services/a/b/", "/clusters/", "/clusters-of-mine"} {
		text += "- {path: '" + path + "', " + certificatesOf + "}\n"
	}
	entries, clusters, err := readText(t, text)
	require.NoError(t, err)
	require.Equal(t, "/clusters/", clusters.path)
	require.Equal(t, "X-Remote-User X-Remote-Group X-Remote-Extra-", clusters.userHeader+" "+clusters.groupHeader+" "+clusters.extraPrefix)
	var mapped mappedServers
	for _, e := range entries {
		mapped = append(mapped, &mappedServer{mappingEntry: e})
	}
	for _, try := range []struct{ path, own, want string }{
		{"/", "", "/"},
		{"/x", "", "/"},
		{"/services", "", "/services"},
		{"/services/", "", "/services"},
		{"/servicesx", "", "/"},
		{"/services/a", "", "/services/a"},
		{"/services/ab", "", "/services"},
		{"/services/a/b", "", "/services/a/b/"},
		{"/services/a/b/c", "", "/services/a/b/"},
		{"/services/a/c", "", "/services/a/{y}"},
		{"/services/a/", "", "/services/a"},
		{"/services/b/clusters/root", "", "/services/{x}/clusters/{cluster}"},
		{"/services/b/clusters/root/api", "", "/services/{x}/clusters/{cluster}"},
		{"/services/b/clusters", "", "/services"},
		{"/services/a", "/services/a/", "/services/a"},
		{"/services/b", "/services/b/", ""},
		{"/clusters/root/api", "/clusters/", ""},
		{"/metrics", "/metrics", ""},
		{"/clusters-of-mine/x", "", "/clusters-of-mine"},
	} {
		got := ""
		if m := mapped.of(try.path, try.own); m != nil {
			got = m.path
		}
		require.Equal(t, try.want, got, "%s beside %q", try.path, try.own)
	}
}

// TestMappingFileErrors holds that what is wrong in a file is named, by entry and field.
func TestMappingFileErrors(t *testing.T) {
	for name, try := range map[string]struct{ text, want string }{
		"nothing":       {"# none\n", "it is empty"},
		"no YAML":       {"- {", "yaml"},
		"no list":       {"path: /x", "not a YAML list"},
		"two documents": {"[]\n---\n[]\n", "more than one YAML document"},
		"twice a key":   {"- {path: /x, path: /y}", "already set"},
		"no mapping":    {"- /x", "entry 1 (path \"\"): it is not a mapping with fields"},
		"unknown":       {"- {path: /x, " + certificatesOf + ", user-header: X}", `entry 1 (path "/x"): unknown field "user-header", the fields are backend, backend_server_ca, extra_header_prefix`},
		"case":          {"- {path: /x, " + certificatesOf + ", Path: /y}", `unknown field "Path"`},
		"type":          {"- {path: /x, " + certificatesOf + ", user_header: 5}", "user_header: it must be a string"},
		"no path":       {"- {" + certificatesOf + "}", "path: it must start with a slash"},
		"relative":      {"- {path: x, " + certificatesOf + "}", "path: it must start with a slash"},
		"escaped":       {"- {path: /%78, " + certificatesOf + "}", "path: it must start with a slash, and be neither escaped"},
		"dots":          {"- {path: /x/.., " + certificatesOf + "}", "path: it has an empty segment, or one of dots"},
		"empty segment": {"- {path: /x//y, " + certificatesOf + "}", "path: it has an empty segment"},
		"any":           {"- {path: '/{x}/y', " + certificatesOf + "}", "path: {x}: a placeholder such as {name} needs a name, and cannot be the first segment"},
		"no name":       {"- {path: '/x/{}', " + certificatesOf + "}", "path: {}: a placeholder"},
		"part":          {"- {path: '/x/a{y}', " + certificatesOf + "}", "path: a{y}: a placeholder is a whole segment"},
		"two clusters":  {"- {path: '/x/{cluster}/{cluster}', " + certificatesOf + "}", "path: it has {cluster} twice"},
		"shards'":       {"- {path: '/clusters/{cluster}/api', " + certificatesOf + "}", "path: what is below /clusters/ belongs to the shards"},
		"own":           {"- {path: /metrics, " + certificatesOf + "}", "path: the front-proxy serves /metrics itself"},
		"same":          {"- {path: '/x/{y}', " + certificatesOf + "}\n- {path: '/x/{z}/', " + certificatesOf + "}", `entry 2 (path "/x/{z}/"): path: entry 1 is for the same paths`},
		"http":          {"- {path: /x, backend: 'http://x', backend_server_ca: ca, proxy_client_cert: crt, proxy_client_key: key}", `backend: "http://x" is not a URL such as https://host:port`},
		"certificates":  {"- {path: /x, backend: 'https://x'}", "entry 1 (path \"/x\"): proxy_client_cert: it is required"},
		"no header":     {"- {path: /x, " + certificatesOf + ", user_header: 'a b'}", `user_header: "a b" is no name of a header`},
		"used":          {"- {path: /x, " + certificatesOf + ", group_header: content-type}", `group_header: "Content-Type" covers "Content-", which clients use`},
		"all":           {"- {path: /x, " + certificatesOf + ", extra_header_prefix: X-}", `extra_header_prefix: "X-" covers "X-Forwarded-"`},
		"as the user":   {"- {path: /x, " + certificatesOf + ", group_header: x-remote-user}", `group_header: "X-Remote-User" is the user's header`},
		"extra":         {"- {path: /x, " + certificatesOf + ", extra_header_prefix: X-Remote-}", "extra_header_prefix: an extra attribute of a user could be taken for"},
		"shards know":   {"- {path: /clusters/, " + certificatesOf + ", user_header: X-User}", "shards know the default ones only"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readText(t, try.text)
			require.ErrorContains(t, err, try.want)
		})
	}
}
