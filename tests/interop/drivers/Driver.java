// Acquires and releases one of Curator's locks: Driver KIND CONNECT PATH TTL
// It takes the commands of driver.py.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Driver {
    public static void main(String[] args) throws Exception {
        int ttl = (int) (Double.parseDouble(args[3]) * 1000);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[1], ttl, 15000, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        InterProcessLock lock = lock(args[0], client, args[2]);
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            System.out.println(answer(lock, line.split(" ")));
        }
        System.exit(0);
    }

    private static InterProcessLock lock(String kind, CuratorFramework client, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            case "semaphore":
                return new InterProcessSemaphoreMutex(client, path);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static String answer(InterProcessLock lock, String[] words) {
        try {
            switch (words[0]) {
                case "race":
                    return "counted " + race(lock, Double.parseDouble(words[1]), Path.of(words[2]));
                case "release":
                    lock.release();
                    return "free";
                default:
                    return lock.acquire(words[0].equals("lock") ? 30000 : 0, TimeUnit.MILLISECONDS) ? "held" : "busy";
            }
        } catch (Exception error) {
            error.printStackTrace();
            return "raised " + error.getClass().getSimpleName();
        }
    }

    private static int race(InterProcessLock lock, double seconds, Path file) throws Exception {
        int counted = 0;
        for (long until = System.nanoTime() + (long) (seconds * 1e9); System.nanoTime() < until; ) {
            if (lock.acquire(100, TimeUnit.MILLISECONDS)) {
                int count = Integer.parseInt(Files.readString(file).trim());
                Thread.sleep(5);
                Files.writeString(file, Integer.toString(count + 1));
                lock.release();
                counted += 1;
            }
            Thread.sleep(ThreadLocalRandom.current().nextInt(1, 40));
        }
        return counted;
    }
}
