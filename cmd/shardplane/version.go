package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	Modified   bool   `json:"modified,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Etcd       string `json:"etcd,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of its components",
		Example: `  shardplane version
  shardplane version --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo()
			text, err := formatVersion(newVersionInfo(info), output)
			if err != nil {
				return invalid(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return failed(err)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	return cmd
}

// newVersionInfo returns the versions that the Go toolchain has recorded. info may be nil.
func newVersionInfo(info *debug.BuildInfo) versionInfo {
	v := versionInfo{
		Version:  "(unknown)",
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info == nil {
		return v
	}
	v.Version = info.Main.Version
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Commit = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}
	for _, dep := range info.Deps {
		switch dep.Path {
		case "k8s.io/apiserver":
			v.Kubernetes = dep.Version
		case "go.etcd.io/etcd/server/v3":
			v.Etcd = dep.Version
		}
	}
	return v
}

func formatVersion(v versionInfo, output string) (string, error) {
	switch output {
	case "json":
		data, err := json.MarshalIndent(v, "", "  ")
		return string(data), err
	case "text":
		return fmt.Sprintf("shardplane %s\nk8s.io/apiserver %s, etcd %s, %s %s",
			v.Version, v.Kubernetes, v.Etcd, v.Go, v.Platform), nil
	default:
		return "", fmt.Errorf("--output is %q: it must be text or json", output)
	}
}
