package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// imageName is the image's name in manifests and compose files.
const imageName = "qsidecar/qsidecar:1.0.0"

// image is a built image, and its files.
type image struct {
	rootfs string   // directory of its files, which belong to root
	store  []string // options of buildah: a storage for this run
	config imageConfig
}

// imageConfig is the part of OCI's image configuration that a runtime uses.
type imageConfig struct {
	User       string
	Env        []string
	Entrypoint []string
	Cmd        []string
	Volumes    map[string]struct{}
	WorkingDir string
	Labels     map[string]string
	StopSignal string
}

var built struct {
	sync.Once
	image *image
}

// theImage returns the image, built once for all tests.
func theImage(t *testing.T) *image {
	t.Helper()
	built.Do(func() {
		img := buildImage(t, "a")
		container := strings.TrimSpace(output(t, img.buildah("from", "--pull-never", imageName)))
		img.rootfs = strings.TrimSpace(output(t, img.buildah("mount", container)))
		built.image = img
	})
	if built.image == nil {
		t.Fatal("the image could not be built: see the test that tried first")
	}
	return built.image
}

// buildImage builds the image in a separate storage.
func buildImage(t *testing.T, name string) *image {
	t.Helper()
	at := filepath.Join(work, name)
	img := &image{store: []string{"--root", at + "/store", "--runroot", at + "/run", "--storage-driver", "vfs"}}
	cmd := exec.Command("./image/build.sh", program(t), imageName)
	cmd.Env = append(os.Environ(), "BUILDAH="+strings.Join(img.buildah().Args, " "), "SOURCE_DATE_EPOCH=1700000000", "REVISION=0123456789abcdef")
	output(t, cmd)
	var inspected struct {
		OCIv1 struct {
			Config imageConfig `json:"config"`
		}
	}
	said := output(t, img.buildah("inspect", "--type", "image", imageName))
	if err := json.Unmarshal([]byte(said), &inspected); err != nil {
		t.Fatalf("buildah inspect: %v\n%s", err, said)
	}
	img.config = inspected.OCIv1.Config
	return img
}

func (i *image) buildah(args ...string) *exec.Cmd {
	return asRoot("buildah", append(slices.Clip(i.store), args...)...)
}

// id returns the image's id: a digest of its config, which contains those of its files.
func (i *image) id(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(output(t, i.buildah("images", "--quiet", "--no-trunc", imageName)))
}

// fetched returns how many bytes a registry transfers for it.
func (i *image) fetched(t *testing.T) (size int64) {
	t.Helper()
	to := filepath.Join(folder(t), "oci")
	output(t, i.buildah("push", "--quiet", imageName, "oci:"+to+":x"))
	for line := range strings.Lines(output(t, asRoot("find", to+"/blobs", "-type", "f", "-printf", "%s\n"))) {
		var n int64
		if _, err := fmt.Sscan(line, &n); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		size += n
	}
	return size
}
